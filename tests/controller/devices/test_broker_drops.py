"""The broker's counter of dropped messages."""

import pytest

from controller.connections.broker import DROPPED_TOPIC, BrokerDrops
from metrics import events
from tests.support.fakes.recording_observer import RecordingObserver


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ([b"5"], []),
        ([b"5", b"5", b"7", b"7"], [2]),
        ([b"5", b"0"], []),
        ([b"5", b"2", b"3"], [2, 1]),
        ([b"0", b"nothing", b"-3", b"1"], [1]),
    ],
    ids=["from before the start", "more", "a restart", "a restart, and more", "what is no number"],
)
def test_what_the_broker_drops_after_the_first_value_is_counted(values: list[bytes], counted: list[int]) -> None:
    observer = RecordingObserver()
    drops = BrokerDrops(observer)
    for value in values:
        drops.on_message(DROPPED_TOPIC, value)

    assert [events.BrokerDroppedMessages(messages=number) for number in counted] == observer.events
