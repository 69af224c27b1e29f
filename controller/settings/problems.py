"""What is wrong or dangerous in ``[http]`` and ``[zookeeper]`` although the types allow it. Pure.

What the daemon listens on must not be open to other machines without authentication.
"""

import re
from collections.abc import Iterator
from typing import Final

from controller.settings.sections import HttpSettings, Section, ZooKeeperSettings
from headgate.settings.arguments import is_port
from headgate.transport.loopback import host_port
from headgate.transport.tls_options import FILES, is_loopback

EVERY_ADDRESS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared, not listened on
_USERNAME = re.compile(r"[!-9;-~]+")
"""ASCII without space, and without the colon that separates user and password."""

Problem = tuple[str, str]
"""A setting (``section.field``), and what is wrong with it."""


def http_problems(http: HttpSettings) -> Iterator[Problem]:
    """Yield settings that lack their partner, and a server that everyone could read."""
    yield from _partner_problems("http", http, ("certificate_file", "key_file"))
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


def zookeeper_problems(zookeeper: ZooKeeperSettings) -> Iterator[Problem]:
    """Yield everything that the types do not check."""
    yield from _partner_problems(
        "zookeeper", zookeeper, ("certificate_file", "key_file"), ("username", "password_file")
    )
    for name in () if zookeeper.tls else FILES:
        if getattr(zookeeper, name) is not None:
            yield "zookeeper.tls", f"{name} is set, and tls is not; set tls = true, or remove {name}"
    if problem := _hosts_problem(zookeeper.hosts):
        yield "zookeeper.hosts", problem
    if zookeeper.username is not None and not _USERNAME.fullmatch(zookeeper.username):
        yield (
            "zookeeper.username",
            f"{zookeeper.username!r} is not a user of ZooKeeper; use ASCII letters and signs, but no space and no :",
        )


def zookeeper_warnings(zookeeper: ZooKeeperSettings) -> list[str]:
    """Return what a network between daemons and ZooKeeper makes dangerous. Nothing if every server is on loopback."""
    hosts, _, _ = zookeeper.hosts.partition("/")
    if all(is_loopback(server.strip().rpartition(":")[0]) for server in hosts.split(",")):
        return []
    found: list[str] = []
    if zookeeper.username is None:
        found.append(
            "$.zookeeper.username is not set: every client of ZooKeeper can change and delete the nodes of this "
            "cluster; set username and password_file"
        )
    if not zookeeper.tls:
        secrets = "" if zookeeper.username is None else ", the password included,"
        found.append(f"$.zookeeper.tls is not set: the network can read and change everything{secrets}; set tls")
    return found


def _partner_problems(section: str, settings: Section, *pairs: tuple[str, str]) -> Iterator[Problem]:
    """Yield each setting that is missing although its partner is set."""
    for pair in pairs:
        absent = [name for name in pair if getattr(settings, name) is None]
        if len(absent) == 1:
            (present,) = set(pair) - set(absent)
            yield f"{section}.{absent[0]}", f"{present} is set, and {absent[0]} is not; set both, or neither"


def _hosts_problem(hosts: str) -> str | None:
    servers, _, _ = hosts.partition("/")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_port(port):
            return f"{server.strip()!r} is not host:port; write for example 127.0.0.1:2181, or a comma-separated list"
    return None
