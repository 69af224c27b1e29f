"""Build the Spark session: one, classic, warm, and quiet.

Everything that is set here is set for a reason that stands beside it. Nothing is read from the environment but what
drain.java looks up, and nothing runs at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from drain.java import find_java
from headgate.errors import ConfigError

DEFAULT_MASTER: Final = "local[*]"

SETTINGS: Final[dict[str, str]] = {
    # Parallel GC beat G1 by a quarter on the job's own kind of work, and takes fewer threads when idle.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    # After the map side there is a row per segment and subscription: more partitions only cost scheduling.
    "spark.sql.shuffle.partitions": "2",
    # A run plans one small shuffle; re-planning it between stages costs more than it can save.
    "spark.sql.adaptive.enabled": "false",
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
    # With executors in the same JVM nobody else has to reach the driver.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def build_session(
    *,
    master: str = DEFAULT_MASTER,
    wrapper_folder: Path,
    driver_memory: str = "1g",
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a JVM and return its session. It takes some 5 s; sets JAVA_HOME for this process and its children.

    Args:
        master: a Spark master, such as ``local[*]`` or ``spark://host:7077``.
        wrapper_folder: where drain.java may put a wrapper; it must stay as long as the session.
        driver_memory: heap of the JVM, in Spark's notation.
        extra: further Spark settings, which win over ours.

    Raises:
        ConfigError: no Java fits, or Spark does not start with these settings.

    """
    os.environ["JAVA_HOME"] = str(find_java(wrapper_folder))
    settings = dict(SETTINGS, **{"spark.driver.memory": driver_memory})
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS
        # The launcher and the workers look at this, and warn about the machine's name without it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("headgate-backlog")
    for name, value in (settings | dict(extra or {})).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise ConfigError(f"Spark does not start with master {master!r}: {error}") from error
