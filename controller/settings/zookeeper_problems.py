"""What is wrong or dangerous in the section ``[zookeeper]``. Pure."""

import re
from collections.abc import Iterator

from controller.settings.listeners import Problem
from controller.settings.sections import ZooKeeperSettings
from headgate.settings.arguments import is_port
from headgate.transport.tls_options import FILES, is_loopback

_USERNAME = re.compile(r"[!-9;-~]+")
"""ASCII without space, and without the colon that separates user and password."""
_PARTNERS = (("certificate_file", "key_file"), ("username", "password_file"))


def zookeeper_problems(zookeeper: ZooKeeperSettings) -> Iterator[Problem]:
    """Yield everything that the types do not check."""
    yield from _partner_problems(zookeeper)
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


def _partner_problems(zookeeper: ZooKeeperSettings) -> Iterator[Problem]:
    """Yield each setting that is set without the one that it needs."""
    for pair in _PARTNERS:
        absent = [name for name in pair if getattr(zookeeper, name) is None]
        if len(absent) == 1:
            (present,) = set(pair) - set(absent)
            yield f"zookeeper.{absent[0]}", f"{present} is set, and {absent[0]} is not; set both, or neither"
    for name in () if zookeeper.tls else FILES:
        if getattr(zookeeper, name) is not None:
            yield "zookeeper.tls", f"{name} is set, and tls is not; set tls = true, or remove {name}"


def _hosts_problem(hosts: str) -> str | None:
    servers, _, _ = hosts.partition("/")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_port(port):
            return f"{server.strip()!r} is not host:port; write for example 127.0.0.1:2181, or a comma-separated list"
    return None
