"""What a machine lacks for a node."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from controller.local import servers
from controller.local.data_folder import FREE_MEGABYTES
from headgate.errors import ConfigError


def prepare(
    monkeypatch: pytest.MonkeyPatch,
    *,
    packages: tuple[str, ...],
    mosquitto: str | None,
    java: bool = True,
    free_mb: int,
) -> None:
    def find_java(_: Path) -> Path:
        if not java:
            raise ConfigError("no Java 17 or 21 found")
        return Path("/usr")

    usage = SimpleNamespace(free=free_mb * 1_000_000)
    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda name: name if name in packages else None)
    monkeypatch.setattr(servers, "find_mosquitto", lambda: mosquitto)
    monkeypatch.setattr(servers, "find_java", find_java)
    monkeypatch.setattr(servers.shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize(
    ("packages", "mosquitto", "java", "free_mb", "reason"),
    [
        pytest.param((), "/m", True, 999, "pyspark is not installed.*: python3 -m pip install .*pyspark", id="Spark"),
        pytest.param(
            ("pyspark",), None, True, 999, "no MQTT broker: apt-get install mosquitto, or python3", id="broker"
        ),
        pytest.param(("pyspark", "amqtt"), None, False, 999, "no Java 17 or 21 found", id="Java"),
        pytest.param(("pyspark",), "/m", True, FREE_MEGABYTES - 1, "299 MB are free, and a node needs 300", id="disk"),
    ],
)
def test_one_line_says_what_is_missing(packages, mosquitto, java, free_mb, reason, tmp_path, monkeypatch):
    prepare(monkeypatch, packages=packages, mosquitto=mosquitto, java=java, free_mb=free_mb)
    with pytest.raises(ConfigError, match=reason):
        servers.require_machine(tmp_path)


@pytest.mark.parametrize(
    ("packages", "mosquitto"), [(("pyspark", "amqtt"), None), (("pyspark",), "/usr/bin/mosquitto")]
)
def test_one_broker_is_enough(packages: tuple[str, ...], mosquitto: str | None, tmp_path: Path, monkeypatch) -> None:
    prepare(monkeypatch, packages=packages, mosquitto=mosquitto, free_mb=FREE_MEGABYTES)
    servers.require_machine(tmp_path)


def test_this_machine_is_checked_as_it_is(tmp_path: Path) -> None:
    servers.require_machine(tmp_path)
