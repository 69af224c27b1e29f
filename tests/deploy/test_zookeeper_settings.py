"""The ZooKeeper settings that we recommend, given to a real ZooKeeper."""

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
# Only a server that hangs meets them: the machine may be slow and busy.
START_SECONDS = 90
ANSWER_SECONDS = 30


def ask(port, word, seconds=ANSWER_SECONDS):
    """Return the server's answer to a four-letter word. Raises OSError."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(word)
        return connection.makefile("rb").read()


def first_answer(server, port):
    """Return what the server says once it serves; empty if it ended or hangs."""
    answer, deadline = b"", time.monotonic() + START_SECONDS
    while b"version" not in answer and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        # It may refuse, drop, or accept and not answer yet.
        with contextlib.suppress(OSError):
            answer = ask(port, b"srvr", seconds=2)
    return answer


@contextlib.contextmanager
def zookeeper(java, folder):
    """Run the server with the recommended settings; yields its port and what it said first."""
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = [java / "bin" / "java", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain"]
    with ReservedPort() as held:
        port = held.number
        text = SETTINGS.read_text()
        text = re.sub(r"^dataDir=.*$", f"dataDir={folder / 'data'}", text, flags=re.MULTILINE)
        text = re.sub(r"^clientPort=.*$", f"clientPort={port}", text, flags=re.MULTILINE)
        # ZooKeeper's own distribution carries this part; the jar that Spark ships does not.
        text = re.sub(r"^metricsProvider\..*\n", "", text, flags=re.MULTILINE)
        (folder / "zookeeper.cfg").write_text(text)
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen([*command, folder / "zookeeper.cfg"], stdout=log, stderr=log) as server,
        ):
            try:
                yield port, first_answer(server, port)
            finally:
                server.kill()


@pytest.mark.contract
@pytest.mark.timeout(3 * START_SECONDS)
def test_a_real_zookeeper_starts_with_them(tmp_path):
    """The server reads every line, listens on loopback alone, and answers what monitoring asks and nothing else."""
    try:
        java = find_java(tmp_path / "java")
    except ConfigError as error:
        pytest.skip(f"needs Java: {error}")
    with zookeeper(java, tmp_path) as (port, answer):
        assert b"Zookeeper version: 3.9" in answer, (tmp_path / "log").read_text()
        assert ask(port, b"ruok") == b"imok"
        assert b"not in the whitelist" in ask(port, b"dump")
