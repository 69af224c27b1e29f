"""When a daemon reaches the broker."""

import pytest

from controller.leadership.broker_contact import broker_contact
from headgate.transport.mqtt_timing import MqttTiming
from headgate.transport.reconnection import RECONNECT_BACKOFF

LOST_SECONDS = 2.5
STABLE_SECONDS = 6.0


@pytest.mark.parametrize(
    ("connected", "seconds", "contact"),
    [
        (False, 0.0, "doubtful"),
        (False, LOST_SECONDS - 0.1, "doubtful"),
        (False, LOST_SECONDS, "lost"),
        (True, 0.0, "doubtful"),
        (True, STABLE_SECONDS - 0.1, "doubtful"),
        (True, STABLE_SECONDS, "reached"),
    ],
)
def test_a_connection_counts_when_it_lasts_and_so_does_its_loss(connected: bool, seconds: float, contact: str) -> None:
    assert broker_contact(connected=connected, seconds=seconds) == contact


def test_no_daemon_reaches_a_broker_that_has_returned_before_all_have_tried() -> None:
    pause_seconds = RECONNECT_BACKOFF.longest_seconds

    assert pause_seconds < LOST_SECONDS
    assert MqttTiming().connect_timeout_seconds + pause_seconds < STABLE_SECONDS
