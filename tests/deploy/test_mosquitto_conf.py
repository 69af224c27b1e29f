"""The shipped mosquitto settings match those of `headgate up`."""

from pathlib import Path

from controller.local.embedded import MOSQUITTO_SETTINGS
from headgate.protocol.messages import MAX_MESSAGE_BYTES

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto.conf"


def settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines)


def test_the_shipped_limits_are_those_of_headgate_up() -> None:
    shipped = settings(SHIPPED.read_text())

    assert {name: shipped.get(name) for name in MOSQUITTO_SETTINGS} == MOSQUITTO_SETTINGS


def test_the_other_shipped_settings_are_those_of_an_installation() -> None:
    of_an_installation = {"listener", "allow_anonymous", "password_file", "acl_file", "persistence_location"}

    assert set(settings(SHIPPED.read_text())) - set(MOSQUITTO_SETTINGS) == of_an_installation


def test_anonymous_clients_are_rejected() -> None:
    assert settings(SHIPPED.read_text())["allow_anonymous"] == "false"


def test_the_packet_limit_exceeds_the_largest_message() -> None:
    assert int(MOSQUITTO_SETTINGS["max_packet_size"]) > MAX_MESSAGE_BYTES + 1024
