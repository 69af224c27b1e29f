"""The recommended ZooKeeper settings, with a real ZooKeeper."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from pathlib import Path

import pyspark
import pytest

from controller.local.reserved_port import ReservedPort
from drain.spark.java import find_java
from headgate.errors import ConfigError

SETTINGS = Path(__file__).parents[2] / "deploy" / "zookeeper.cfg"
# Upper bounds for a slow and busy machine.
START_SECONDS = 90
REPLY_SECONDS = 30


def query(port, word, seconds=REPLY_SECONDS):
    """Return the server's reply to a four-letter word; raises OSError."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(word)
        return connection.makefile("rb").read()


def first_reply(server, port):
    """Return the first reply of the server; empty if it exited or hangs."""
    reply, deadline = b"", time.monotonic() + START_SECONDS
    while b"version" not in reply and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        # It can refuse, drop, or accept the connection without a reply.
        with contextlib.suppress(OSError):
            reply = query(port, b"srvr", seconds=2)
    return reply


@contextlib.contextmanager
def zookeeper(java, folder):
    """Run the server with the recommended settings; yields its port and first reply."""
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = [java / "bin" / "java", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain"]
    with ReservedPort() as reserved:
        port = reserved.number
        text = SETTINGS.read_text()
        text = re.sub(r"^dataDir=.*$", f"dataDir={folder / 'data'}", text, flags=re.MULTILINE)
        text = re.sub(r"^clientPort=.*$", f"clientPort={port}", text, flags=re.MULTILINE)
        # Only ZooKeeper's distribution contains this class, Spark's jars do not.
        text = re.sub(r"^metricsProvider\..*\n", "", text, flags=re.MULTILINE)
        (folder / "zookeeper.cfg").write_text(text)
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen([*command, folder / "zookeeper.cfg"], stdout=log, stderr=log) as server,
        ):
            try:
                yield port, first_reply(server, port)
            finally:
                server.kill()


@pytest.mark.contract
@pytest.mark.timeout(3 * START_SECONDS)
def test_a_real_zookeeper_starts_with_the_settings(tmp_path):
    """It accepts every line, and replies only to the commands that monitoring needs."""
    try:
        java = find_java(tmp_path / "java")
    except ConfigError as error:
        pytest.skip(f"needs Java: {error}")
    with zookeeper(java, tmp_path) as (port, reply):
        assert b"Zookeeper version: 3.9" in reply, (tmp_path / "log").read_text()
        assert query(port, b"ruok") == b"imok"
        assert b"not in the whitelist" in query(port, b"dump")
