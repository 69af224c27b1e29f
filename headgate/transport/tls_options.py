"""The settings of TLS, the same for daemons and clients, and which of them need each other. Pure."""

import re
from ipaddress import ip_address
from typing import Final

import msgspec

_SERVER_NAME = re.compile(r"(?=.{1,253}$)[\w:-]{1,63}(\.[\w:-]{1,63})*", re.ASCII)
"""Names as in RFC 1035, and both kinds of addresses."""


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


FILES: Final = ("ca_file", "certificate_file", "key_file")


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
