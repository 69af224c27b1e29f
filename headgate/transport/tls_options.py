"""The settings of TLS towards the broker, the same for daemons and clients, and which of them need each other. Pure."""

import re
from ipaddress import ip_address
from typing import Final, Protocol

_SERVER_NAME = re.compile(r"(?=.{1,253}$)[\w:-]{1,63}(\.[\w:-]{1,63})*", re.ASCII)
"""Names as in RFC 1035, and both kinds of addresses."""


class TlsFiles(Protocol):
    """The files that a section names; None: not set."""

    @property
    def ca_file(self) -> str | None:
        """Certificates of the authorities that may vouch for the broker. Default: those of the system."""

    @property
    def certificate_file(self) -> str | None:
        """The certificate that is presented to the broker."""

    @property
    def key_file(self) -> str | None:
        """The private key of that certificate."""


class TlsOptions(TlsFiles, Protocol):
    """A section with these settings; None: not set."""

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""

    @property
    def server_name(self) -> str | None:
        """The name that the broker's certificate must contain. Default: the host."""


FILES: Final = ("ca_file", "certificate_file", "key_file")


def tls_option_problem(options: TlsOptions) -> tuple[str, str] | None:
    """Return a setting that lacks its partner or is invalid, and what is wrong; None if all is right."""
    for name in (*FILES, "server_name"):
        value = getattr(options, name)
        if value == "":
            return name, "is empty; write a value, or remove the setting"
        if value is not None and not options.tls:
            return name, f"{name} is set, and tls is not; set tls = true, or remove {name}"
    if (options.certificate_file is None) != (options.key_file is None):
        absent, present = (
            ("key_file", "certificate_file") if options.key_file is None else ("certificate_file", "key_file")
        )
        return absent, f"{present} is set, and {absent} is not; set both, or neither"
    server_name = options.server_name
    if server_name is not None and _SERVER_NAME.fullmatch(server_name) is None:
        return "server_name", f"{server_name!r} is neither the name nor the address of a server"
    return None


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach ``host``. Other names than localhost are not looked up: False."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def password_warning(options: TlsOptions, host: str, password_file: str | None) -> str | None:
    """Return a warning if the network between here and ``host`` can read the password; None if not."""
    if password_file is None or options.tls or is_loopback(host):
        return None
    return f"tls is not set: the network between here and {host} can read the password and all messages; set tls = true"
