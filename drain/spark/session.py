"""Build the Spark session: one, warm, and quiet, on whichever engine the master names (drain.master).

``local`` and clusters mean a JVM that is a child of this process; ``sc://`` means a session on a Spark Connect server,
which has been configured by whoever runs it: there only what a session may set is set. Everything that is set here is
set for a reason that stands beside it. Nothing is read from the environment but what drain.spark.java looks up and
what tells that `spark-submit` has started us, and nothing runs at import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from drain.spark.engines import ENGINE_ERRORS
from drain.spark.java import find_java
from drain.spark.master import DEFAULT_MASTER, engine_of, is_on_this_machine
from headgate.errors import ConfigError

SETTINGS: Final[dict[str, str]] = {
    # Parallel GC beat G1 by a quarter on the job's own kind of work, and takes fewer threads when idle.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    # After the map side there is a row per segment and subscription: more partitions only cost scheduling.
    "spark.sql.shuffle.partitions": "2",
    # A run plans one small shuffle; re-planning it between stages costs more than it can save.
    "spark.sql.adaptive.enabled": "false",
    # Counting and roll-up share the cores, where the first would otherwise wait for all tasks of the second.
    "spark.scheduler.mode": "FAIR",
    # More than 32 paths would start a job that lists them. We name files, not folders: there is nothing to list.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Whatever is in one of our files is there to be counted: no file is passed over.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Nobody looks at the UI of a process that lives for months, and what it retains only grows.
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
    # With all executors on this machine nobody else has to reach the driver.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


APP_NAME: Final = "headgate-backlog"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Where this stands in the environment, `spark-submit` has started the JVM, with the master that it was given."""
CONNECT_RETRIES: Final = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 4.0, "max_backoff": 2000}
"""A server that restarts is back within seconds, and has forgotten our session then; pyspark's own ten minutes would
look like a hung process."""


def submitted_session() -> SparkSession | None:
    """Return the session of the JVM that `spark-submit` started for this process; None if it started none.

    Master and memory are what `spark-submit` was told; our settings are added where a session may set them.
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
    """Return a new session. A JVM of our own takes some 5 s; sets JAVA_HOME for this process and its children.

    Args:
        master: a Spark master, such as ``local[*]``, ``spark://host:7077`` or ``sc://host:15002``.
        wrapper_folder: where drain.spark.java may put a wrapper; it must stay as long as the session.
        driver_memory: heap of the JVM, in Spark's notation.
        extra: further Spark settings, which win over ours.

    Raises:
        ConfigError: no Java fits, the master names no engine, or Spark does not start with these settings.

    """
    engine = engine_of(master)
    if engine == "connect":
        return _connect(master, extra or {})
    os.environ["JAVA_HOME"] = str(find_java(wrapper_folder))
    settings = dict(SETTINGS, **{"spark.driver.memory": driver_memory})
    # Workers that read objects (drain.spark.object_data_source) need the packages of this interpreter; a cluster's may
    # be elsewhere.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_on_this_machine(master):
        settings |= LOCAL_SETTINGS
        # The launcher and the workers look at this, and warn about the machine's name without it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
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
            f"Spark Connect ({master}) needs further packages: pip install 'headgate[connect]' ({error})"
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
        raise ConfigError(f"the Spark Connect server at {master} refuses: {_first_line(error)}") from error
    return session


def _configure(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Set what a running session may be told; the rest was decided by whoever started the engine."""
    for name, value in settings.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
