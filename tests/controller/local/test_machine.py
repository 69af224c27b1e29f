"""What a machine lacks for a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.local.machine import FREE_MEGABYTES, require_machine
from headgate.errors import ConfigError


def require(folder: Path, *, packages: tuple[str, ...], mosquitto: str | None, java: bool = True, free_mb: int) -> None:
    def find_java(_: Path) -> Path:
        if not java:
            raise ConfigError("no Java 17 or 21 found")
        return Path("/usr")

    require_machine(
        folder,
        is_installed=packages.__contains__,
        mosquitto=lambda: mosquitto,
        java=find_java,
        free_bytes=lambda _: free_mb * 1_000_000,
    )


@pytest.mark.parametrize(
    ("packages", "mosquitto", "java", "free_mb", "reason"),
    [
        pytest.param((), "/m", True, 999, "pyspark is not installed.*: python3 -m pip install 'headgate-d", id="Spark"),
        pytest.param(
            ("pyspark",), None, True, 999, "no MQTT broker: apt-get install mosquitto, or python3", id="broker"
        ),
        pytest.param(("pyspark", "amqtt"), None, False, 999, "no Java 17 or 21 found", id="Java"),
        pytest.param(("pyspark",), "/m", True, FREE_MEGABYTES - 1, "299 MB are free, and a node needs 300", id="disk"),
    ],
)
def test_one_line_says_what_is_missing(
    packages: tuple[str, ...], mosquitto: str | None, java: bool, free_mb: int, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason):
        require(tmp_path, packages=packages, mosquitto=mosquitto, java=java, free_mb=free_mb)


@pytest.mark.parametrize(
    ("packages", "mosquitto"), [(("pyspark", "amqtt"), None), (("pyspark",), "/usr/bin/mosquitto")]
)
def test_one_broker_is_enough(packages: tuple[str, ...], mosquitto: str | None, tmp_path: Path) -> None:
    require(tmp_path, packages=packages, mosquitto=mosquitto, free_mb=FREE_MEGABYTES)


def test_this_machine_is_checked_as_it_is(tmp_path: Path) -> None:
    require_machine(tmp_path)
