"""The address that only programs on this machine reach: the default of every server and client."""

import functools
import socket
from typing import Final

IPV4: Final = "127.0.0.1"
IPV6: Final = "::1"


@functools.cache
def loopback() -> str:
    """Return `IPV4`, or `IPV6` on a machine whose loopback interface has no IPv4 address."""
    try:
        with socket.socket(socket.AF_INET) as probe:
            probe.bind((IPV4, 0))
    except OSError:
        return IPV6
    return IPV4


def host_port(host: str, port: int | str) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
