"""A Spark cluster and a Spark Connect server on this machine, from PySpark's scripts.

They are small: two workers with one core, heaps of a few hundred megabytes. They listen on free loopback ports, write
below one folder, and are killed with this process (headgate.process.parent_death_signal).
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from drain.spark.java import find_java
from headgate.process.parent_death_signal import with_parent_death_signal
from tests.support.servers.class_archive import SMALL_JVM, archive_options

START_SECONDS = 240
SPARK_HOME = Path(pyspark.__file__).parent


@contextlib.contextmanager
def started(
    folder: Path, name: str, script: str, *arguments: str, until: str, heap: str = "256m"
) -> Iterator[re.Match[str]]:
    """Run one of PySpark's scripts while entered; yields the match of ``until`` in its log."""
    log_path = folder / f"{name}.log"
    environment = os.environ | {
        "JAVA_HOME": str(find_java(folder / "java")),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_DAEMON_MEMORY": heap,
        "SPARK_DAEMON_JAVA_OPTS": f"{SMALL_JVM} {archive_options()}",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log_path.open("w") as log:
        process = subprocess.Popen(
            with_parent_death_signal(str(SPARK_HOME / "bin" / script), *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield _await_match(process, log_path, until)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_match(process: subprocess.Popen[bytes], log_path: Path, until: str) -> re.Match[str]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = log_path.read_text(errors="replace")
        if found := re.search(until, text, re.DOTALL):
            return found
        assert process.poll() is None, f"{log_path.name} ended: {text[-3000:]}"
        time.sleep(0.1)
    raise AssertionError(f"{log_path.name}: no {until!r} within {START_SECONDS} s: {text[-3000:]}")


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers; yields ``spark://…``."""
    with contextlib.ExitStack() as stack:
        here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = stack.enter_context(
            started(
                folder,
                "master",
                *("spark-class", "org.apache.spark.deploy.master.Master", *here),
                until=r"Starting Spark master at (spark://127\.0\.0\.1:\d+)",
            )
        )
        for number in (1, 2):
            worker = ("spark-class", "org.apache.spark.deploy.worker.Worker", *here, "--cores", "1", "--memory", "800m")
            stack.enter_context(
                started(
                    folder,
                    f"worker-{number}",
                    *(*worker, "--work-dir", str(folder / f"work-{number}"), master[1]),
                    until="Successfully registered with master",
                )
            )
        yield master[1]


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[str]:
    """A Spark Connect server with a local master; yields ``sc://…``."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    with started(
        folder,
        "connect",
        *("spark-submit", "--master", "local[1]"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        until=r"Spark Connect server started at: \S*?:(\d+)",
        heap="700m",
    ) as server:
        yield f"sc://127.0.0.1:{server[1]}"
