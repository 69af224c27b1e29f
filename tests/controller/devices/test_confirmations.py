"""A device learns what became of its message, if it asks for it, and only where its user may read."""

import json

import pytest

from controller.devices.intake import MAX_CORRELATION_BYTES, MAX_RESPONSE_LEVELS, MAX_RESPONSE_TOPIC_BYTES, may_confirm
from headgate.protocol.codec import confirmations_prefix, leader_topic
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from tests.support.fakes.broker import Message
from tests.support.waiting import never, until
from tests.support.worlds.device_environment import Devices
from tests.support.worlds.one_shard import CLUSTER

OWN = confirmations_prefix(CLUSTER, "ada")
REPLIES = OWN + "sensor-1"


@pytest.fixture
def devices() -> Devices:
    return Devices()


@pytest.fixture
def confirmations(devices: Devices) -> list[Message]:
    """Return what the broker gets below the topics of devices, in order."""
    found: list[Message] = []
    below = f"headgate/{CLUSTER}/devices/"
    devices.shard.broker.spies.append(
        lambda message: found.append(message) if message.topic.startswith(below) else None
    )
    return found


def content(message: Message) -> object:
    return message.topic, json.loads(message.payload), message.correlation_data


async def test_a_record_is_confirmed_once_it_is_durable(devices: Devices, confirmations: list[Message]) -> None:
    async with devices.running() as (leader, _):
        devices.shard.store.freeze()
        assert devices.publish("orders/a", b"1", user="ada", response=(REPLIES, b"7"))
        await until(lambda: leader.commit.newest > leader.commit.durable)
        await never(lambda: confirmations, 1)
        devices.shard.store.thaw()
        await until(lambda: confirmations)

    assert [(REPLIES, {"outcome": "stored"}, b"7")] == [content(each) for each in confirmations]
    assert await devices.values() == [b"1"]
    assert devices.metric("device_confirmations_total", outcome="sent") == 1


async def test_a_refused_message_is_answered_with_the_reason(devices: Devices, confirmations: list[Message]) -> None:
    async with devices.running():
        for name, value in (("orders/", b"1"), ("orders/a", bytes(MAX_RECORD_BYTES))):
            devices.publish(name, value, user="ada", response=(REPLIES, b""))
        await until(lambda: len(confirmations) == 2)

    reasons = [content(each)[1] for each in confirmations]
    assert [{"outcome": "refused", "reason": reason} for reason in ("empty_key", "too_large")] == reasons


@pytest.mark.parametrize(
    ("user", "response"),
    [(None, REPLIES), ("eve", REPLIES), ("ada", leader_topic(CLUSTER, 0)), ("ada", OWN)],
    ids=["in no user's name", "of another user", "an announcement", "no topic of its own"],
)
async def test_the_daemon_publishes_nothing_where_the_device_may_not_read(
    devices: Devices, confirmations: list[Message], user: str | None, response: str
) -> None:
    async with devices.running():
        devices.publish("orders/a", b"1", user=user, response=(response, b"7"))
        await until(lambda: devices.metric("device_confirmations_total", outcome="invalid_topic") == 1)
        await devices.all_acknowledged()

    assert [b"1"] == await devices.values()
    assert not confirmations


@pytest.mark.parametrize(
    ("topic", "correlation", "accepted"),
    [
        (REPLIES, None, True),
        (OWN + "a/b", bytes(MAX_CORRELATION_BYTES), True),
        (OWN + "x" * (MAX_RESPONSE_TOPIC_BYTES - len(OWN)), b"", True),
        (OWN + "x" * (MAX_RESPONSE_TOPIC_BYTES - len(OWN) + 1), b"", False),
        (REPLIES, bytes(MAX_CORRELATION_BYTES + 1), False),
        (OWN + "/" * (MAX_RESPONSE_LEVELS - 1 - OWN.count("/")), b"", True),
        (OWN + "/" * (MAX_RESPONSE_LEVELS - OWN.count("/")), b"", False),
        (OWN + "+", b"", False),
        (OWN + "a/#", b"", False),
        (OWN + "\0", b"", False),
        (OWN.removesuffix("/"), b"", False),
        ("", b"", False),
    ],
)
def test_response_topics_are_short_and_below_the_users_own(topic: str, correlation: bytes | None, accepted: bool):
    assert may_confirm(CLUSTER, "ada", topic, correlation) == accepted
    assert not may_confirm(CLUSTER, "ad", topic, correlation)
    assert not may_confirm(CLUSTER, None, topic, correlation)
