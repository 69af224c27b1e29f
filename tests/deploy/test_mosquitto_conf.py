"""The settings that we ship for mosquitto, and those that `headgate up` uses, are the same where it matters."""

from pathlib import Path

from controller.local.embedded import MOSQUITTO_SETTINGS
from headgate.protocol.messages import MAX_MESSAGE_BYTES

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto.conf"


def settings(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines)


def test_the_limits_are_the_same() -> None:
    shipped = settings(SHIPPED.read_text())

    assert {name: shipped.get(name) for name in MOSQUITTO_SETTINGS} == MOSQUITTO_SETTINGS


def test_the_shipped_settings_have_no_others_but_those_of_the_place() -> None:
    of_the_place = {"listener", "allow_anonymous", "password_file", "persistence_location"}

    assert set(settings(SHIPPED.read_text())) - set(MOSQUITTO_SETTINGS) == of_the_place


def test_nobody_comes_in_without_a_password() -> None:
    assert settings(SHIPPED.read_text())["allow_anonymous"] == "false"


def test_the_largest_message_of_the_protocol_passes() -> None:
    assert int(MOSQUITTO_SETTINGS["max_packet_size"]) > MAX_MESSAGE_BYTES + 1024
