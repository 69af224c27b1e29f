"""One subscription that is balanced by load: asked for, measured, put on record, and calm across changes of leader."""

import pytest

from coordinator.balancing.weights import weight_of
from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.subscription_environment import World, virtual_time

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world():
    """Six segments, QUEUE (nothing is blocked), nobody registered."""
    with virtual_time():
        world = World(segments=6, type="QUEUE", order="none")
        world.lead(world.check)
    yield world
    await world.coordinator.close()


@pytest.fixture
async def stream_world():
    """Two segments, STREAM in strict order, nobody registered."""
    with virtual_time():
        world = World(segments=2)
        world.lead(world.check)
    yield world
    await world.coordinator.close()


def moves(world: World) -> int:
    return len(world.proposed(e.SegmentRevoked))


def incarnation(world: World, segment: int) -> dict:
    return {"incarnation": world.subscription.consumers[world.subscription.holdings[segment].consumer].incarnation}


def acknowledge(world: World, segment: int, end: int) -> None:
    holder = world.subscription.holdings[segment].consumer
    world.acknowledge(holder, segment, end, first_offset=end - 1, **incarnation(world, segment))


def confirm(world: World, segment: int) -> None:
    world.confirm(world.subscription.holdings[segment].consumer, segment, **incarnation(world, segment))


async def traffic(world: World, loads: dict[int, int], seconds: float) -> None:
    """Let time pass with ``loads`` (segment → bytes a second), everything read at once."""
    for _ in range(round(seconds / 5)):
        for segment, load in loads.items():
            world.store(segment, 1, load * 5)
            holding = world.subscription.holdings[segment]
            end = world.topic.tails[segment].next_offset
            if holding.revoked_at_ms is None:
                acknowledge(world, segment, end)
        for segment, holding in sorted(world.subscription.holdings.items()):
            if holding.revoked_at_ms is not None:
                confirm(world, segment)
        await world.live(5)


HOT = {0: 300_000, 1: 10_000, 2: 10_000, 3: 10_000, 4: 10_000, 5: 10_000}


async def balanced(world: World) -> None:
    world.register("ada", balance="load")
    world.register("bob")
    await traffic(world, HOT, 300)


async def test_who_joins_says_the_balance_and_who_comes_back_does_not(world: World) -> None:
    world.register("ada")
    assert "count" == world.coordinator.describe().balance
    world.register("bob", balance="load")
    world.register("cyd")
    assert "load" == world.coordinator.describe().balance
    world.register("bob", balance="load")
    world.register("cyd", balance="count", incarnation=2)
    world.register("bob", balance="load")
    assert "count" == world.coordinator.describe().balance


async def test_nothing_is_measured_while_the_balance_is_by_count(world: World) -> None:
    world.register("ada")
    world.register("bob")
    await traffic(world, HOT, 300)

    assert [] == world.proposed(e.SegmentsWeighed)
    assert [None] * 6 == [segment.weight for segment in world.coordinator.describe().segments]


async def test_who_reads_the_hot_segment_is_relieved_of_the_others(world: World) -> None:
    await balanced(world)

    hot = world.holders()[0]
    assert {0} == {segment for segment, name in world.holders().items() if name == hot}
    weights = {segment.segment: segment.weight for segment in world.coordinator.describe().segments}
    assert weights[0] > 20 * weights[1] > 0


async def test_each_weight_that_changes_is_told_and_how(world: World) -> None:
    def told() -> list[str]:
        return [each[1] for each in world.observer.told if each[0] == "weighed"]

    await balanced(world)
    assert ["first"] * 6 == told()
    world.observer.told.clear()
    await traffic(world, {0: 10_000, 1: 300_000}, 600)
    assert {"heavier", "lighter"} == set(told())
    assert len(told()) == sum(len(entry.weights) for entry in world.proposed(e.SegmentsWeighed)) - 6


async def test_a_load_that_stays_moves_nothing_more(world: World) -> None:
    await balanced(world)
    before, weighed = moves(world), len(world.proposed(e.SegmentsWeighed))
    await traffic(world, HOT, 1800)

    assert (before, weighed) == (moves(world), len(world.proposed(e.SegmentsWeighed)))


async def test_a_change_of_leader_moves_nothing(world: World) -> None:
    """Weights begin from the record: neither the first look of a reign nor its first samples touch anything."""
    await balanced(world)
    before, holders = moves(world), world.holders()
    for _ in range(3):
        await world.coordinator.close()
        world.lead(world.check)
        world.coordinator.tick()
        for name in ("ada", "bob"):
            world.register(name)
        await traffic(world, HOT, 600)

    assert (before, holders) == (moves(world), world.holders())


async def test_a_burst_right_after_a_change_of_leader_is_damped_like_any_other(world: World) -> None:
    """Everybody catches up then; taken for the first sample of all, it would change the weight a minute later."""
    await balanced(world)
    weighed = len(world.proposed(e.SegmentsWeighed))
    await world.coordinator.close()
    world.lead(world.check)
    world.coordinator.tick()
    await traffic(world, HOT | {1: 120_000}, 10)
    await traffic(world, HOT, 300)

    assert weighed == len(world.proposed(e.SegmentsWeighed))


async def test_without_acknowledgements_there_is_no_backlog_to_weigh() -> None:
    world = World(segments=2, type="CHECKPOINT", order="none")
    world.lead()
    world.store(0, 5, 10**9)
    world.register("ada", balance="load")
    await world.live(300)

    assert [{0: 16, 1: 16}] == [entry.weights for entry in world.proposed(e.SegmentsWeighed)]
    await world.coordinator.close()


async def test_capacity_draws_load_and_can_be_changed_without_leaving(world: World) -> None:
    even = dict.fromkeys(range(6), 100_000)
    world.register("ada", balance="load")
    world.register("bob")
    await traffic(world, even, 120)
    assert 3 == list(world.holders().values()).count("ada")

    answer = world.register("bob", capacity=200)
    await traffic(world, even, 30)
    assert isinstance(answer, m.Registered)
    assert {"ada": 100, "bob": 200} == {c.consumer: c.capacity for c in world.coordinator.describe().consumers}
    assert 2 == list(world.holders().values()).count("ada")
    assert 3 == len(world.proposed(e.ConsumerRegistered))


async def test_the_same_capacity_again_puts_nothing_on_record(world: World) -> None:
    world.register("ada", capacity=50)
    world.register("ada", capacity=50)

    assert 1 == len(world.proposed(e.ConsumerRegistered))


async def test_back_to_count_balances_by_count(world: World) -> None:
    await balanced(world)
    world.register("ada", balance="count", incarnation=2)
    await traffic(world, HOT, 30)

    assert 3 == list(world.holders().values()).count("ada")


async def test_blocked_segments_weigh_nothing_and_have_a_weight_when_they_are_let_through(stream_world: World) -> None:
    world = stream_world
    world.register("ada", balance="load")
    world.register("bob")
    for segment in (0, 1):
        if world.subscription.holdings[segment].revoked_at_ms is not None:
            world.confirm(world.subscription.holdings[segment].consumer, segment)
    world.store(0, 5)
    world.split(0)
    before = world.holders()
    for _ in range(30):
        world.store(2, 1, 5_000_000)
        world.store(3, 1, 5_000_000)
        world.store(1, 1, 50_000)
        await world.live(5)

    described = {segment.segment: segment for segment in world.coordinator.describe().segments}
    assert ["blocked", "blocked"] == [described[s].status for s in (2, 3)]
    assert described[2].weight > 10 * described[1].weight
    assert before == world.holders()
    assert {"ada", "bob"} == set(before.values())


async def test_a_share_weighs_its_part_and_a_backlog_counts_by_bucket() -> None:
    with_shares = World(segments=1, type="QUEUE", order="none")
    with_shares.lead(with_shares.check)
    with_shares.register("ada", balance="load", shares=True)
    with_shares.store(0, 160, 30_000_000)
    with_shares.register("bob", shares=True)
    with_shares.confirm("ada", 0)
    await with_shares.live(5)
    halves = [share.consumer for share in with_shares.coordinator.describe().segments[0].shares]
    assert ["ada", "bob"] == sorted(halves)
    with_shares.register("cyd", shares=True, capacity=1000)
    half = e.AcknowledgedRange(0, 0, 160, 0, 8)
    with_shares.propose(e.RecordsAcknowledged(topic_id=1, subscription_id=2, seek_generation=0, ranges=[half]))
    await with_shares.live(200)

    # Nobody reads on, and there is no traffic: all of the 160 records wait in half of the buckets.
    assert [{0: weight_of((30_000_000 + 160 * 256) // 2 // 300)}] == [
        entry.weights for entry in with_shares.proposed(e.SegmentsWeighed)
    ]
    await with_shares.coordinator.close()


async def test_who_gets_nothing_because_of_the_load_is_told_so(stream_world: World) -> None:
    world = stream_world
    world.register("ada", balance="load")
    world.register("bob", capacity=1)
    for place, holding in sorted(world.subscription.holdings.items()):
        if holding.revoked_at_ms is not None:
            world.confirm(holding.consumer, place)
    idle = {c.consumer: c.idle for c in world.coordinator.describe().consumers}

    assert {0: "ada", 1: "ada"} == world.holders()
    assert {"ada": "", "bob": "balanced by load, nothing that others hold would be read better here"} == idle
