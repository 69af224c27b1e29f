"""Connects to a broker once, with MQTT 5, and returns what it accepts.

Nothing is published or subscribed.
"""

import ssl
import time
from typing import Any, Final, cast

from paho.mqtt.client import Client, ConnectFlags, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from headgate.errors import TransportError
from headgate.transport.aiomqtt_parts import ENDED_EARLY, broker_properties
from headgate.transport.broker_tls import BrokerTls, TlsSockets, tls_problem
from headgate.transport.connection_loss import UNSUPPORTED_VERSION
from headgate.transport.port import BrokerProperties

STEP_SECONDS: Final = 0.1


def read_broker_properties(
    host: str,
    port: int,
    client_id: str,
    *,
    username: str | None,
    password: str | None,
    tls: BrokerTls | None,
    timeout_seconds: float,
) -> BrokerProperties | None:
    """Connect, read what the broker accepts, and disconnect. Blocks for at most ``timeout_seconds``, and TCP's.

    None: it speaks no MQTT 5.

    Raises TransportError or ConfigError.
    """
    answers: list[tuple[ReasonCode, Properties | None]] = []
    client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5)
    client.connect_timeout = timeout_seconds

    def on_connect(_: Client, __: Any, ___: ConnectFlags, code: ReasonCode, properties: Properties | None) -> None:
        answers.append((code, properties))

    client.on_connect = on_connect
    if username is not None:
        client.username_pw_set(username, password)
    sockets = None if tls is None else TlsSockets(tls)
    if sockets is not None:
        # paho only calls `wrap_socket` and reads `check_hostname`.
        client.tls_set_context(cast("ssl.SSLContext", sockets))
    began = time.monotonic()
    try:
        client.connect(host, port)
        while not answers and time.monotonic() - began < timeout_seconds:
            if client.loop(STEP_SECONDS) and not answers:
                raise TransportError(ENDED_EARLY)
        seconds = time.monotonic() - began
        client.disconnect()
    except OSError as error:
        failure = None if sockets is None else sockets.failure(error)
        raise TransportError(str(error) if failure is None or tls is None else tls_problem(failure, tls)) from error
    if not answers:
        raise TransportError(f"it did not answer within {timeout_seconds:g} s")
    code, properties = answers[0]
    if code.value == UNSUPPORTED_VERSION:
        return None
    if code.is_failure:
        raise TransportError(f"it refuses the connection: {code}")
    return broker_properties(properties, seconds)
