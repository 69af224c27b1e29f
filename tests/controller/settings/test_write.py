"""Documents that headgate writes are read back as the same values."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.settings.load import Settings, load_settings, parse_settings
from controller.settings.sections import (
    AccessSettings,
    DrainSettings,
    InstanceSettings,
    LedgerSettings,
    MetricsSettings,
)
from controller.settings.write import client_toml, settings_toml
from headgate import ClientConfig, load_client_config

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(spark_conf=st.dictionaries(st.from_regex(r"spark\.[a-z\" =]{1,8}", fullmatch=True), TEXT), folder=TEXT)
def test_settings_are_read_back_with_any_text(spark_conf: dict[str, str], folder: str) -> None:
    settings = Settings(
        ledger=LedgerSettings(url="file:///a%20folder"),
        drain=DrainSettings(spark_conf=spark_conf, folder=f"x{folder}"),
        metrics=MetricsSettings(backlog_topics=["a", "b"]),
    )

    assert settings == parse_settings(settings_toml("Two lines\nof comment.", settings), "a test")


def test_written_settings_name_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "headgate.toml"
    settings = Settings(
        access=AccessSettings(open=True), ledger=LedgerSettings(url="file:///a"), instance=InstanceSettings(name="one")
    )
    path.write_text(settings_toml("", settings))

    assert "one" == load_settings(path, default_instance="another").instance.name


@pytest.mark.parametrize("username", [None, "ada"])
def test_a_client_configuration_is_read_back(tmp_path: Path, username: str | None) -> None:
    config = ClientConfig(cluster="c", broker_host="h", broker_port=1, ledger_url='file:///a"\x7fé', username=username)
    path = tmp_path / "client.toml"
    path.write_text(client_toml("For clients.", config))

    assert msgspec.structs.replace(config, file=str(path)) == load_client_config(path)
    assert msgspec.structs.asdict(config)["username"] is username
