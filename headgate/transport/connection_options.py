"""The options of TLS, the same for daemons and clients; time limits and pauses of a connection to a broker. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Self

import msgspec

from headgate.backoff import Backoff, BackoffSchedule

_SERVER_NAME = re.compile(r"(?=.{1,253}$)[\w:-]{1,63}(\.[\w:-]{1,63})*", re.ASCII)
"""Names as in RFC 1035, and both kinds of addresses."""
FILES: Final = ("ca_file", "certificate_file", "key_file")
RECONNECT_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=2.0, jitter=1.0, shortest_seconds=0.05)
EARLY_LOSS_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=30.0, jitter=1.0, shortest_seconds=0.05)
STABLE_CONNECTION_SECONDS: Final = 5.0
"""A connection that lasted this long, and twice as long as the pause before it could, resets the pauses.
Of two clients with one client id, each is connected while the other pauses."""
MAX_CONNECT_TIMEOUT_SECONDS: Final = 10.0
"""A later attempt may find what this one waits for in vain."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """How connections to a server are encrypted. A daemon reads the files again at SIGHUP."""

    tls: bool = False
    """Encrypt connections, TLS 1.2 or later, and verify the server. It has another port for TLS (a broker
    usually 8883)."""
    ca_file: str | None = None
    """Certificates (PEM) of the authorities that may vouch for the server. Relative paths of this and the next two
    are looked up in systemd's credentials first, then in the folder of the settings file. Default: the
    authorities of the system."""
    certificate_file: str | None = None
    """Certificate (PEM) that is presented to a server that requires one, followed by intermediate ones.
    Default: none."""
    key_file: str | None = None
    """Private key of that certificate (PEM, not encrypted). Only its owner and group may have access."""


class TlsOptions(TlsFiles, frozen=True, kw_only=True):
    server_name: str | None = None
    """Name or address that the broker's certificate must contain. Default: the host."""


def tls_option_problem(options: TlsFiles) -> tuple[str, str] | None:
    """Return a setting that lacks its partner or is invalid, and what is wrong; None if all is right."""
    server_name = getattr(options, "server_name", None)
    for name, value in (*((name, getattr(options, name)) for name in FILES), ("server_name", server_name)):
        if value == "":
            return name, "is empty; write a value, or remove the setting"
        if value is not None and not options.tls:
            return name, f"{name} is set, and tls is not; set tls = true, or remove {name}"
    if (options.certificate_file is None) != (options.key_file is None):
        absent, present = (
            ("key_file", "certificate_file") if options.key_file is None else ("certificate_file", "key_file")
        )
        return absent, f"{present} is set, and {absent} is not; set both, or neither"
    if server_name is not None and _SERVER_NAME.fullmatch(server_name) is None:
        return "server_name", f"{server_name!r} is neither the name nor the address of a server"
    return None


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach ``host``. Other names than localhost are not looked up: False."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def password_warning(options: TlsFiles, host: str, password_file: str | None) -> str | None:
    """Return a warning if the network between here and ``host`` can read the password; None if not."""
    if password_file is None or options.tls or is_loopback(host):
        return None
    return f"tls is not set: the network between here and {host} can read the password and all messages; set tls = true"


def pause_after_attempt(drawn_seconds: float, attempt_seconds: float) -> float:
    """Return the pause after a failed attempt. One that waited in vain was a pause: the next one follows at once."""
    return max(drawn_seconds - attempt_seconds, RECONNECT_BACKOFF.shortest_seconds)


class EarlyLosses:
    """Connections in a row that the broker accepted and soon ended, and the pause after each."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.in_a_row = 0
        self._schedule = BackoffSchedule(EARLY_LOSS_BACKOFF, draw)
        self._longest_last_pause_seconds = 0.0

    def pause_after(self, connected_seconds: float) -> float:
        """Count the loss of a connection that lasted ``connected_seconds``; return the pause before the next one."""
        self.in_a_row += 1
        if connected_seconds >= max(STABLE_CONNECTION_SECONDS, 2 * self._longest_last_pause_seconds):
            self.in_a_row = 0
            self._schedule.reset()
        self._longest_last_pause_seconds = self._schedule.bound_seconds
        return self._schedule.next_seconds()


@dataclass(slots=True)
class MqttTiming:
    keepalive_seconds: int = 5
    """The broker ends a connection that is silent for one and a half of these."""
    ping_seconds: int | None = None
    """A ping follows this long after the last message, and the connection is lost if as long passes again without an
    answer; both are checked once a second. At most ``keepalive_seconds``, which is the default."""
    connect_timeout_seconds: float = 3.0
    """For the TCP connection, for the TLS handshake, and again for the broker's answer."""
    subscribe_timeout_seconds: float = 5.0
    """For the confirmation of a subscription. A slower broker counts as lost."""
    close_timeout_seconds: float = 2.0
    """For the broker to receive the published messages before closing."""
    immediate_write_after_idle_seconds: float = 0.001
    """After this long without a message, one is written immediately. Under load messages are
    written together, once per turn of the loop: a write for each would wake the broker for each."""

    @classmethod
    def for_first_connection(cls, seconds: float | None) -> Self:
        """Return the limits of a program that waits ``seconds`` for its first connection; None: the defaults."""
        return cls() if seconds is None else cls(connect_timeout_seconds=min(seconds, MAX_CONNECT_TIMEOUT_SECONDS))
