"""What the daemon listens on must not be open to other machines without authentication. Pure."""

from collections.abc import Iterator
from typing import Final

from controller.settings.sections import HttpSettings
from headgate.transport.loopback import host_port
from headgate.transport.tls_options import is_loopback

EVERY_ADDRESS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared, not listened on


Problem = tuple[str, str]
"""A setting (``section.field``), and what is wrong with it."""


def http_problems(http: HttpSettings) -> Iterator[Problem]:
    """Yield settings that lack their partner, and a server that everyone could read."""
    for present, absent in (("certificate_file", "key_file"), ("key_file", "certificate_file")):
        if getattr(http, present) is not None and getattr(http, absent) is None:
            yield f"http.{absent}", f"{present} is set, and {absent} is not; set both, or neither"
    if http.client_ca_file is not None and http.certificate_file is None:
        problem = "is set, and certificate_file is not: without TLS, clients present no certificates"
        yield "http.client_ca_file", f"{problem}; set certificate_file and key_file, or remove it"
    if not is_loopback(http.host) and http.tokens_file is None and http.client_ca_file is None:
        problem = (
            f"is not set, and http.host {http.host!r} is not loopback: every machine that reaches port {http.port} "
            "could read status, backlogs and metrics; make a token with `headgate http token NAME --file FILE` and "
            "name FILE here, set client_ca_file, or listen on loopback"
        )
        yield "http.tokens_file", problem


def http_warnings(http: HttpSettings) -> list[str]:
    """Return what is allowed and should not be: tokens that cross a network without TLS."""
    if is_loopback(http.host) or http.tokens_file is None or http.certificate_file is not None:
        return []
    problem = "the network can read the tokens of HTTP clients"
    remedy = "set certificate_file and key_file, or make sure that only a proxy with TLS reaches this port"
    return [f"$.http.certificate_file is not set: {problem}; {remedy}"]


def advertised_url(http: HttpSettings, address: str, machine: str) -> str:
    """Return the URL under which others reach the server; ``address`` is that of its socket, ``machine`` its name."""
    listening, _, port = address.rpartition(":")
    host = http.advertised_host or (machine if listening in EVERY_ADDRESS else listening)
    return f"{'http' if http.certificate_file is None else 'https'}://{host_port(host, port)}"
