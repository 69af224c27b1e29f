"""Build the Spark session on the engine that the master names (drain.setting_values).

On a Spark Connect server (``sc://``) only settings that a session may change are set. The environment is read only by
drain.spark.java and to detect `spark-submit`, and nothing runs at import.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from drain.setting_values import DEFAULT_MASTER, engine_of, is_on_this_machine
from drain.spark.engines import ENGINE_ERRORS
from drain.spark.java import find_java
from headgate.errors import ConfigError
from headgate.extras import install_extra
from headgate.transport.loopback import IPV4, loopback

JAVA_OPTIONS: Final = (
    # Was a quarter faster than G1 on this workload, and has fewer threads when idle.
    "-XX:+UseParallelGC",
    # No counters in a file, which a thread writes 20 times a second.
    "-XX:-UsePerfData",
    # Ten times the defaults. The code of small runs, which are nearly all, is not optimized: that took half of their
    # processor time. Counting ten million rows takes as long as with the defaults.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
SETTINGS: Final[dict[str, str]] = {
    "spark.driver.extraJavaOptions": " ".join(JAVA_OPTIONS),
    # After the map side there is one row per segment and subscription: more partitions only cost scheduling.
    "spark.sql.shuffle.partitions": "2",
    # A run has one small shuffle. Re-planning between stages costs more than it can save.
    "spark.sql.adaptive.enabled": "false",
    # Counting and compaction share the cores. Otherwise counting waits for all tasks of a compaction.
    "spark.scheduler.mode": "FAIR",
    # By default a batch for a Python task has up to 10 000 records, of up to a megabyte each.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # The UI of a process that runs for months is not used, and its retained data only grows.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "5",
    "spark.ui.retainedStages": "5",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
LOCAL_SETTINGS: Final[dict[str, str]] = {
    # With all executors on this machine, no other machine has to reach the driver.
    "spark.driver.host": IPV4,
    "spark.driver.bindAddress": IPV4,
}

APP_NAME: Final = "headgate-backlog"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""If this variable is set, `spark-submit` has started the JVM, with its own master."""
CONNECT_RETRIES: Final = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 4.0, "max_backoff": 2000}
"""A restarted server is back within seconds and has lost the session. With pyspark's default of ten
minutes the process would seem to hang."""


def submitted_session() -> SparkSession | None:
    """Return the session of the JVM that `spark-submit` started for this process; None if it started none.

    Master and memory are those of `spark-submit`; SETTINGS are added where a session may change them.
    """
    if SUBMITTED not in os.environ:
        return None
    session = SparkSession.builder.appName(APP_NAME).getOrCreate()
    _configure(session, SETTINGS)
    return session


def build_session(
    *,
    master: str = DEFAULT_MASTER,
    wrapper_folder: Path,
    driver_memory: str = "1g",
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a new session. Starting a JVM takes some 5 s and sets JAVA_HOME for this process and its children.

    ``wrapper_folder`` (see drain.spark.java) has to exist as long as the session. ``extra`` settings override SETTINGS.

    Raises:
        ConfigError: no Java is suitable, the master is invalid, or Spark does not start with these
            settings.
    """
    engine = engine_of(master)
    if engine == "connect":
        return _connect(master, extra or {})
    if loopback() != IPV4:
        raise ConfigError(
            f"PySpark reaches its Java process only at {IPV4}, and loopback has no IPv4 address here: add it (ip addr "
            f"add {IPV4}/8 dev lo), or use a Spark Connect server (sc://host:port) or drain.results of another machine"
        )
    os.environ["JAVA_HOME"] = str(find_java(wrapper_folder))
    os.environ["LC_ALL"] = "C.UTF-8"  # Without UTF-8, Java opens paths of ASCII only.
    settings = dict(SETTINGS, **{"spark.driver.memory": driver_memory})
    # Workers that read objects (drain.spark.object_reader) need the packages of this
    # interpreter. On a cluster its path may differ.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # They import nothing from the working folder either (headgate.process.child_process.python_module).
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    if is_on_this_machine(master):
        settings |= LOCAL_SETTINGS
        # Without this variable, the launcher and the workers warn about the host name.
        os.environ.setdefault("SPARK_LOCAL_IP", IPV4)
    builder = SparkSession.builder.master(master).appName(APP_NAME)
    for name, value in (settings | dict(extra or {})).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise ConfigError(f"Spark does not start with master {master!r}: {error}") from error


def _connect(master: str, extra: Mapping[str, str]) -> SparkSession:
    try:
        session: SparkSession = SparkSession.builder.remote(master).getOrCreate()
    except ImportError as error:
        raise ConfigError(
            f"Spark Connect ({master}) needs more packages: {install_extra('connect', 'headgate-daemon')} ({error})"
        ) from error
    except ENGINE_ERRORS as error:
        raise ConfigError(f"no Spark Connect server answers at {master}: {_first_line(error)}") from error
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - needs the packages of Connect

    session.client.set_retry_policies([DefaultPolicy(**CONNECT_RETRIES)])  # type: ignore[arg-type]
    try:
        _configure(session, SETTINGS)
        for name, value in extra.items():
            session.conf.set(name, value)
    except ENGINE_ERRORS as error:
        raise ConfigError(f"the Spark Connect server at {master} rejects the settings: {_first_line(error)}") from error
    return session


def _configure(session: SparkSession, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
