"""The ZooKeeper settings that we recommend, given to a real ZooKeeper."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pyspark
import pytest

from drain.java import find_java
from headgate.errors import ConfigError

SETTINGS = Path(__file__).parents[2] / "deploy" / "zookeeper.cfg"
START_SECONDS = 30


def ask(port, word):
    """Return the server's answer to a four-letter word; empty while it does not listen."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(word)
            return connection.makefile("rb").read()
    except ConnectionError:
        return b""


@pytest.mark.contract
def test_a_real_zookeeper_starts_with_them(tmp_path):
    """The server reads every line, listens on loopback alone, and answers what monitoring asks and nothing else."""
    try:
        java = find_java(tmp_path / "java")
    except ConfigError as error:
        pytest.skip(f"needs Java: {error}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = SETTINGS.read_text()
    text = re.sub(r"^dataDir=.*$", f"dataDir={tmp_path / 'data'}", text, flags=re.MULTILINE)
    text = re.sub(r"^clientPort=.*$", f"clientPort={port}", text, flags=re.MULTILINE)
    # ZooKeeper's own distribution carries this part; the jar that Spark ships does not.
    text = re.sub(r"^metricsProvider\..*\n", "", text, flags=re.MULTILINE)
    (tmp_path / "zookeeper.cfg").write_text(text)
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = [java / "bin" / "java", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, tmp_path / "zookeeper.cfg"], stdout=log, stderr=log, env=dict(os.environ)
        ) as server,
    ):
        try:
            answer, deadline = b"", time.monotonic() + START_SECONDS
            while b"version" not in answer and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                answer = ask(port, b"srvr")
            assert b"Zookeeper version: 3.9" in answer, (tmp_path / "log").read_text()
            assert ask(port, b"ruok") == b"imok"
            assert b"not in the whitelist" in ask(port, b"dump")
        finally:
            server.kill()
