"""Checks that this machine can run a complete node, before anything starts."""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Final

from controller.local.embedded import find_mosquitto
from drain.spark.java import find_java
from headgate.errors import ConfigError
from headgate.extras import install_extra

FREE_MEGABYTES: Final = 300
"""ZooKeeper and the broker preallocate files, and Spark unpacks libraries."""


def require_machine(folder: Path) -> None:
    """Raise ConfigError if a node with its data in ``folder`` lacks something; the text says what supplies it."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            f"pyspark is not installed; it counts, and contains ZooKeeper: {install_extra('up', 'headgate-daemon')}"
        )
    if find_mosquitto() is None and importlib.util.find_spec("amqtt") is None:
        raise ConfigError(
            f"there is no MQTT broker: apt-get install mosquitto, or {install_extra('up', 'headgate-daemon')}"
        )
    with tempfile.TemporaryDirectory(prefix="headgate-java-") as wrappers:
        find_java(Path(wrappers))
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < FREE_MEGABYTES:
        raise ConfigError(
            f"data folder {folder}: {free} MB are free, and a node needs {FREE_MEGABYTES} MB; "
            "free space, or choose another with --data"
        )
