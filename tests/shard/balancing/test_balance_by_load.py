"""One subscription balanced by load: configuration, sampling, recorded weights, leader changes."""

import pytest

from headgate.model import entries as e
from headgate.protocol.replies import Registered
from metrics.events import SegmentWeightChanged
from shard.balancing.weights import weight_of
from shard.steps import complete
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """A QUEUE with six segments and no consumer."""
    return lead(segments=6, type="QUEUE")


@pytest.fixture
async def stream_harness(lead: Lead) -> CoordinatorHarness:
    """A STREAM with two segments and no consumer."""
    return lead(segments=2)


def moves(harness: CoordinatorHarness) -> int:
    return len(harness.proposed(e.SegmentRevoked))


def acknowledge(harness: CoordinatorHarness, segment: int, end: int) -> None:
    holder = harness.subscription.consumers[harness.subscription.holdings[segment].consumer]
    harness.acknowledge(holder.consumer, segment, end, first_offset=end - 1, incarnation=holder.incarnation)


async def traffic(harness: CoordinatorHarness, loads: dict[int, int], seconds: float) -> None:
    """Let time pass with ``loads`` (segment → bytes per second), all acknowledged at once."""
    for _ in range(round(seconds / 5)):
        for segment, load in loads.items():
            harness.store(segment, 1, load * 5)
            holding = harness.subscription.holdings[segment]
            end = harness.topic.tails[segment].next_offset
            if holding.revoked_at_ms is None:
                acknowledge(harness, segment, end)
        harness.confirm_all()
        await harness.run_with_heartbeats(5)


HOT = {0: 300_000, 1: 10_000, 2: 10_000, 3: 10_000, 4: 10_000, 5: 10_000}


async def balanced(harness: CoordinatorHarness) -> None:
    harness.register("ada", balance="load")
    harness.register("bob")
    await traffic(harness, HOT, 300)


async def test_loads_are_not_sampled_when_balancing_by_count(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    await traffic(harness, HOT, 300)

    assert [] == harness.proposed(e.SegmentWeightsSet)
    assert [None] * 6 == [segment.weight for segment in complete(harness.coordinator.describe()).segments]


async def test_the_holder_of_the_hot_segment_gets_no_other(harness: CoordinatorHarness) -> None:
    await balanced(harness)

    hot = harness.holders()[0]
    assert {0} == {segment for segment, name in harness.holders().items() if name == hot}
    weights = {segment.segment: segment.weight for segment in complete(harness.coordinator.describe()).segments}
    assert weights[0] > 20 * weights[1] > 0


async def test_each_weight_change_is_reported(harness: CoordinatorHarness) -> None:
    def changes() -> list[str]:
        return [event.change for event in harness.observer.of(SegmentWeightChanged)]

    await balanced(harness)
    assert ["initial"] * 6 == changes()
    harness.observer.events.clear()
    await traffic(harness, {0: 10_000, 1: 300_000}, 600)
    assert {"increased", "decreased"} == set(changes())
    assert len(changes()) == sum(len(entry.weights) for entry in harness.proposed(e.SegmentWeightsSet)) - 6


async def test_a_constant_load_moves_nothing_more(harness: CoordinatorHarness) -> None:
    await balanced(harness)
    before, changes = moves(harness), len(harness.proposed(e.SegmentWeightsSet))
    await traffic(harness, HOT, 1800)

    assert (before, changes) == (moves(harness), len(harness.proposed(e.SegmentWeightsSet)))


async def test_a_checkpoint_subscription_has_no_backlog_to_weigh(lead: Lead) -> None:
    harness = lead(segments=2, type="CHECKPOINT")
    harness.store(0, 5, 10**9)
    harness.register("ada", balance="load")
    await harness.run_with_heartbeats(300)

    assert [{0: 16, 1: 16}] == [entry.weights for entry in harness.proposed(e.SegmentWeightsSet)]


async def test_capacity_attracts_load_and_can_change_without_leaving(harness: CoordinatorHarness) -> None:
    even = dict.fromkeys(range(6), 100_000)
    harness.register("ada", balance="load")
    harness.register("bob")
    await traffic(harness, even, 120)
    assert 3 == list(harness.holders().values()).count("ada")

    answer = harness.register("bob", capacity=200)
    await traffic(harness, even, 30)
    assert isinstance(answer, Registered)
    assert {"ada": 100, "bob": 200} == {
        c.consumer: c.capacity for c in complete(harness.coordinator.describe()).consumers
    }
    assert 2 == list(harness.holders().values()).count("ada")
    assert 3 == len(harness.proposed(e.ConsumerRegistered))


async def test_an_unchanged_capacity_is_not_recorded_again(harness: CoordinatorHarness) -> None:
    harness.register("ada", capacity=50)
    harness.register("ada", capacity=50)

    assert 1 == len(harness.proposed(e.ConsumerRegistered))


async def test_switching_back_to_count_balances_by_count(harness: CoordinatorHarness) -> None:
    await balanced(harness)
    harness.register("ada", balance="count", incarnation=2)
    await traffic(harness, HOT, 30)

    assert 3 == list(harness.holders().values()).count("ada")


async def test_a_bucket_range_weighs_its_proportion_and_a_backlog_counts_by_bucket(lead: Lead) -> None:
    shared = lead(type="QUEUE")
    shared.register("ada", balance="load", supports_bucket_ranges=True)
    shared.store(0, 160, 30_000_000)
    shared.register("bob", supports_bucket_ranges=True)
    shared.confirm("ada", 0)
    await shared.run_with_heartbeats(5)
    halves = [share.consumer for share in complete(shared.coordinator.describe()).segments[0].bucket_ranges]
    assert ["ada", "bob"] == sorted(halves)
    shared.register("cyd", supports_bucket_ranges=True, capacity=1000)
    half = e.AcknowledgedRange(0, 0, 160, 0, 8)
    shared.propose(e.RecordsAcknowledged(topic_id=1, subscription_id=2, seek_generation=0, ranges=[half]))
    await shared.run_with_heartbeats(200)

    # No consumer reads, and no records arrive: all 160 records are pending in half of the buckets.
    assert [{0: weight_of((30_000_000 + 160 * 256) // 2 // 300)}] == [
        entry.weights for entry in shared.proposed(e.SegmentWeightsSet)
    ]


async def test_the_idle_reason_of_a_consumer_that_would_not_even_out_the_load(stream_harness: CoordinatorHarness):
    harness = stream_harness
    harness.register("ada", balance="load")
    harness.register("bob", capacity=1)
    harness.confirm_all()
    idle = {c.consumer: c.idle for c in complete(harness.coordinator.describe()).consumers}

    assert {0: "ada", 1: "ada"} == harness.holders()
    assert {"ada": "", "bob": "moving a segment to it would not even out the load"} == idle
