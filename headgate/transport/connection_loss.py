"""Why there is no connection to the broker, and whether waiting helps."""

from enum import Enum, auto
from typing import Final

from aiomqtt.exceptions import MqttConnectError  # noqa: TID251 - see headgate.transport.mqtt
from paho.mqtt.reasoncodes import ReasonCode

from headgate.errors import ConfigError
from headgate.transport.aiomqtt_parts import ENDED_EARLY, cause_of
from headgate.transport.broker_tls import BrokerTls, TlsSockets, is_end_of_connection, tls_problem

UNSPECIFIED_ERROR: Final = 128
UNSUPPORTED_VERSION: Final = 132
SERVER_UNAVAILABLE: Final = 136
"""Reason codes of MQTT 5, in which paho gives those of 3.1.1 too."""


class Cause(Enum):
    OUTAGE = auto()
    """It was lost, or nothing answers: it will come back."""
    DOUBT = auto()
    """It was refused, or the broker is just starting."""
    REFUSAL = auto()
    """It was refused, and waiting does not help."""


def loss_reason(
    error: Exception, tls: BrokerTls | None, sockets: TlsSockets | None, username: str | None
) -> tuple[str, Cause]:
    """Return why a connection was lost, or refused, for users. ``sockets``: those of this attempt."""
    cause = cause_of(error)
    if isinstance(error, ConfigError):
        return str(error), Cause.REFUSAL
    if tls is not None and sockets is not None and (failure := sockets.failure(cause)):
        kind = Cause.DOUBT if is_end_of_connection(failure) else Cause.REFUSAL
        return tls_problem(failure, tls), kind
    if isinstance(cause, MqttConnectError):
        user = "a client without user name" if username is None else f"user {username}"
        temporary = isinstance(cause.rc, ReasonCode) and cause.rc.value == SERVER_UNAVAILABLE
        return f"the broker refuses {user}: {cause.rc}", Cause.DOUBT if temporary else Cause.REFUSAL
    if str(cause) == ENDED_EARLY and tls is None:
        return f"{ENDED_EARLY}; if this port uses TLS, set tls = true", Cause.OUTAGE
    code = getattr(cause, "rc", None)
    # paho calls a connection that the broker closed an unspecified error.
    closed = isinstance(code, ReasonCode) and code.value == UNSPECIFIED_ERROR
    return "the broker closed the connection" if closed else str(cause), Cause.OUTAGE


def refuses_version(error: Exception) -> bool:
    code = error.rc if isinstance(error, MqttConnectError) else None
    return isinstance(code, ReasonCode) and code.value == UNSUPPORTED_VERSION
