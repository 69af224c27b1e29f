"""When a holder makes no progress, and who may take its segment."""

import pytest

from headgate.model.positions import OffsetRanges
from shard.state.consumers import Holding, RegisteredConsumer
from shard.state.redelivery import Attempts
from shard.state.topic import SLOT_MS, Traffic
from shard.subscriptions.stalled import Unfinished, is_stalled, takeable, unfinished
from tests.support.worlds.subscription_environment import CoordinatorHarness

LIMIT_MS, WINDOW = 60_000, 15.0
NOW = 1_000_000


@pytest.mark.parametrize(
    ("since_ms", "waited_seconds", "limit_ms", "stalled"),
    [
        pytest.param(NOW - LIMIT_MS, 30, LIMIT_MS, True, id="the limit has passed by the ledger's clock"),
        pytest.param(NOW - LIMIT_MS + 1, 59, LIMIT_MS, False, id="one millisecond is missing"),
        pytest.param(
            NOW - 9 * LIMIT_MS, 14, LIMIT_MS, False, id="after an outage a new leader waits for the holder first"
        ),
        pytest.param(NOW - 9 * LIMIT_MS, WINDOW, LIMIT_MS, True, id="a change of leader does not renew the limit"),
        pytest.param(NOW - 5000, 5, 5000, True, id="a limit below the window is not made longer"),
        pytest.param(NOW + 10**9, 60, LIMIT_MS, True, id="the ledger's clock was ahead, and this leader waited"),
    ],
)
def test_the_limit(since_ms, waited_seconds, limit_ms, stalled):
    assert stalled == is_stalled(since_ms, NOW, waited_seconds, limit_ms, WINDOW)


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [
        ({"b": {}}, True),
        ({}, False),
        ({"b": {"disconnected_at_ms": 1}}, False),
        ({"b": {"stalled_at_ms": 1}}, False),
        ({"b": {"stalled_at_ms": 1}, "c": {}}, True),
    ],
    ids=["another one", "no other one", "one in its grace period", "one that stalled before", "a third one"],
)
async def test_a_segment_goes_to_a_connected_consumer_that_makes_progress(consumers, expected):
    subscription = CoordinatorHarness().subscription
    for name, fields in {"a": {}, **consumers}.items():
        subscription.consumers[name] = RegisteredConsumer(name, 1, name, **fields)

    assert ({0: "a"} if expected else {}) == takeable(subscription, [Unfinished(0, "a", 5, 0, 0)])


async def test_both_holders_that_stall_at_once_keep_their_segments_without_a_third():
    subscription = CoordinatorHarness().subscription
    subscription.consumers |= {name: RegisteredConsumer(name, 1, name) for name in "ab"}

    assert {} == takeable(subscription, [Unfinished(0, "a", 5, 0, 0), Unfinished(1, "b", 0, 0, 0)])


def stored(*counts):
    """Return traffic with so many records in each slot, from the first one on."""
    traffic = Traffic()
    for slot, count in enumerate(counts):
        if count:
            traffic.add(slot * SLOT_MS, count, count)
    return traffic


@pytest.mark.parametrize(
    ("traffic", "newest", "expected"),
    [
        (stored(5, 0, 3), 3, 3 * SLOT_MS),
        (stored(5, 0, 3), 4, SLOT_MS),
        (stored(5, 0, 3), 8, SLOT_MS),
        (stored(5, 0, 3), 9, 0),
        (stored(*[1] * 70), 62, 9 * SLOT_MS),
        (Traffic(), 1, 0),
    ],
    ids=["the newest slot", "an earlier one", "the first known", "before all", "before the known", "nothing known"],
)
def test_traffic_says_by_when_a_record_was_stored(traffic, newest, expected):
    assert expected == traffic.stored_by_ms(newest)


async def test_what_has_records_and_a_connected_holder_counts_from_its_progress_or_its_oldest_record():
    harness = CoordinatorHarness(segments=5)
    subscription = harness.subscription
    subscription.consumers |= {"a": RegisteredConsumer("a", 1, "a"), "gone": RegisteredConsumer("gone", 1, "g", 1)}
    for segment in (0, 1, 3, 4):
        harness.store(segment, 4)
    slot_end_ms = (harness.now_ms() // SLOT_MS + 1) * SLOT_MS
    progressed_ms = slot_end_ms + 7
    subscription.progress.positions |= {1: 3}
    holdings = {
        0: Holding("a", 1, progressed_at_ms=progressed_ms),
        1: Holding("a", 2, progressed_at_ms=3),
        2: Holding("a", 3),
        3: Holding("a", 4, revoked_at_ms=1),
        4: Holding("gone", 5),
    }
    subscription.holdings |= holdings

    found = list(unfinished(subscription, harness.topic, harness.now_ms(), {}))

    assert [Unfinished(0, "a", 0, progressed_ms, progressed_ms), Unfinished(1, "a", 3, 3, slot_end_ms)] == found


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, (1, 0)),
        ({1: Attempts(0, 1, not_before_ms=NOW + 1)}, (4, 0)),
        ({1: Attempts(0, 1, not_before_ms=NOW)}, (1, NOW)),
        ({1: Attempts(0, 3, dead_letter=1), 4: Attempts(0, 1, not_before_ms=NOW + 1)}, None),
    ],
    ids=["the first gap", "one that waits", "one that has waited", "one that is dead and one that waits"],
)
async def test_a_queue_is_not_behind_with_records_that_wait_or_are_dead(known, expected):
    harness = CoordinatorHarness(type="QUEUE")
    subscription = harness.subscription
    subscription.consumers["a"] = RegisteredConsumer("a", 1, "a")
    subscription.holdings[0] = Holding("a", 1)
    harness.topic.tails[0].next_offset = 5
    subscription.progress.positions[0], subscription.progress.acknowledged_ranges[0] = 1, OffsetRanges([(2, 4)])
    subscription.redelivery.attempts[0] = known

    found = [(each.offset, each.since_ms) for each in unfinished(subscription, harness.topic, NOW, {})]

    assert ([] if expected is None else [expected]) == found
