"""One coordinator whose consumers share segments: how shares come and go, what counts in them, and what people are told."""

import pytest

from coordinator.balancing.affinity import heirs_of
from coordinator.reporting.idle_reasons import idle_reasons
from headgate.model.bucket_ranges import Share
from headgate.model.layout import Layout
from headgate.protocol import messages as m
from tests.support.subscription_environment import Checker, World, virtual_time

pytestmark = pytest.mark.looptime

LOW, HIGH = Share(0, 0, 8), Share(0, 8, 16)


def lead(kind: str = "STREAM", segments: int = 1) -> World:
    world = World(segments=segments, type=kind, order="strict" if kind == "STREAM" else "none")
    world.lead(Checker(world))
    return world


def shared(kind: str = "STREAM") -> World:
    """Ada and bob share a segment of ten records."""
    world = lead(kind)
    world.register("ada", shares=True)
    world.store(0, 10)
    world.register("bob", shares=True)
    world.confirm("ada", 0)
    world.told("ada"), world.told("bob")
    return world


@pytest.fixture
async def world(request: pytest.FixtureRequest):
    with virtual_time():
        world = shared(getattr(request, "param", "STREAM"))
    yield world
    await world.coordinator.close()


def idle(world: World) -> dict[str, str]:
    return {c.consumer: c.idle for c in world.coordinator.describe().consumers if c.idle}


def grants(messages: list[m.Push]) -> list[tuple[int, int]]:
    return [(grant.first_bucket, grant.end_bucket) for message in messages for grant in message.granted]


async def test_a_segment_is_cut_by_the_handover_and_nobody_reads_a_bucket_before_it_is_free() -> None:
    world = lead()
    world.register("ada", shares=True)
    answer = world.register("bob", shares=True)
    (revoked,) = world.told("ada")

    assert [] == answer.grants
    assert [m.Revocation(segment=0, generation=1)] == revoked.revoked
    world.confirm("ada", 0)
    assert ([(0, 8)], [(8, 16)]) == (grants(world.told("ada")), grants(world.told("bob")))
    assert {LOW: "ada", HIGH: "bob"} == world.holders()
    await world.coordinator.close()


async def test_a_consumer_less_joins_the_halves_again(world: World) -> None:
    world.leave("bob")
    assert [m.Revocation(segment=0, generation=2, first_bucket=0, end_bucket=8)] == world.told("ada")[0].revoked
    world.confirm("ada", LOW)

    assert {0: "ada"} == world.holders()


async def test_what_is_acknowledged_under_a_share_counts_in_its_buckets_alone(world: World) -> None:
    assert world.acknowledge("ada", LOW, 10) is None
    assert world.acknowledge("bob", HIGH, 4) is None

    assert 4 == world.subscription.position(0)
    assert [10, 4] == [world.subscription.acknowledged_in(0, bucket).position for bucket in (0, 15)]
    reason = world.acknowledge("bob", LOW, 5)
    assert "held by 'ada' at generation 2, 'bob' at generation 3, not by 'bob' at generation 2" in (reason or "")


async def test_whoever_gets_the_whole_segment_is_told_where_each_bucket_begins(world: World) -> None:
    world.acknowledge("ada", LOW, 10)
    world.acknowledge("bob", HIGH, 4)
    world.leave("bob")
    world.confirm("ada", LOW)
    (grant,) = world.told("ada")[-1].granted

    assert (4, [m.BucketStart(0, 8, 10)]) == (grant.start_offset, grant.starts)
    assert world.acknowledge("ada", 0, 7) is None
    assert [10, 7] == [world.subscription.acknowledged_in(0, bucket).position for bucket in (0, 15)]
    assert world.acknowledge("ada", 0, 10) is None
    assert {} == world.subscription.by_bucket


@pytest.mark.parametrize("world", ["QUEUE"], indirect=True)
async def test_ranges_of_a_queue_are_kept_by_bucket_and_told_by_bucket(world: World) -> None:
    world.acknowledge("ada", LOW, 6, first_offset=2)
    world.acknowledge("bob", HIGH, 3, first_offset=0)
    world.leave("bob")
    world.confirm("ada", LOW)
    (grant,) = world.told("ada")[-1].granted

    assert 0 == grant.start_offset
    assert [m.BucketStart(0, 8, 0, [(2, 6)]), m.BucketStart(8, 16, 3)] == grant.starts


async def test_a_sealed_segment_is_drained_once_every_share_has_reached_its_end(world: World) -> None:
    world.split(0)
    world.acknowledge("ada", LOW, 10)
    await world.live(10)
    assert set() == world.subscription.drained
    assert {LOW: "ada", HIGH: "bob"} == world.holders(), "its shares go on being read"
    world.acknowledge("bob", HIGH, 10)
    await world.live(10)

    assert {0} == world.subscription.drained
    assert {1: "ada", 2: "bob"} == world.holders()


async def test_a_new_leader_changes_nothing(world: World) -> None:
    world.acknowledge("ada", LOW, 10)
    held = dict(world.subscription.holdings)
    await world.coordinator.close()
    world.lead(Checker(world))
    await world.run(1)
    answer = world.register("ada", shares=True)

    assert held == world.subscription.holdings
    assert [(0, 0, 8, 10)] == [(g.segment, g.first_bucket, g.end_bucket, g.start_offset) for g in answer.grants]


async def test_a_share_that_was_lost_on_the_way_is_sent_again(world: World) -> None:
    world.heartbeat("ada", held=[])
    assert [(0, 8)] == grants(world.told("ada"))
    world.heartbeat("ada", held=[(0, 2), (0, 3)])

    assert [m.Revocation(segment=0, generation=3, final=True)] == world.told("ada")[0].revoked


async def test_who_is_silent_keeps_its_share_and_who_is_evicted_leaves_it_to_others(world: World) -> None:
    world.coordinator.client_gone("client-bob")
    world.heartbeat("ada")
    assert {LOW: "ada", HIGH: "bob"} == world.holders()
    for _ in range(13):
        await world.run(5)
        world.heartbeat("ada")
    world.confirm("ada", LOW)

    assert {0: "ada"} == world.holders()


async def test_a_holder_that_does_not_let_go_is_fenced_and_the_cut_goes_on() -> None:
    world = lead()
    world.register("ada", shares=True)
    world.register("bob", shares=True)
    for _ in range(7):
        await world.run(5)
        world.heartbeat("ada"), world.heartbeat("bob")

    assert {LOW, HIGH} == set(world.holders())
    await world.coordinator.close()


async def test_a_seek_begins_again_in_every_bucket(world: World) -> None:
    world.acknowledge("ada", LOW, 10)
    world.seek({0: 3})

    assert {LOW: "ada", HIGH: "bob"} == world.holders()
    assert [3, 3] == [world.subscription.acknowledged_in(0, bucket).position for bucket in (0, 15)]
    assert "not by 'ada' at generation 2" in (world.acknowledge("ada", LOW, 10, generation=2) or "")


async def test_an_old_client_is_given_whole_segments_alone() -> None:
    world = lead(segments=2)
    for name in ("old", "ada", "bob"):
        world.register(name, shares=name != "old")
    for place in list(world.subscription.holdings):
        world.confirm(world.subscription.holdings[place].consumer, place)

    assert {"old": [0], "ada": [Share(1, 0, 8)], "bob": [Share(1, 8, 16)]} == {
        name: world.subscription.held_by(name) for name in ("old", "ada", "bob")
    }
    await world.coordinator.close()


# --- what people are told ---------------------------------------------------------------------------------------------


async def test_the_description_tells_who_reads_which_buckets(world: World) -> None:
    world.acknowledge("bob", HIGH, 4)
    (segment,) = world.coordinator.describe().segments

    assert ("shared", None, 0) == (segment.status, segment.consumer, segment.acknowledged_offset)
    assert [(0, 8, "granted", "ada", 0), (8, 16, "granted", "bob", 4)] == [
        (s.first_bucket, s.end_bucket, s.status, s.consumer, s.acknowledged_offset) for s in segment.shares
    ]
    assert [[(0, 0, 8)], [(0, 8, 16)]] == [c.shares for c in world.coordinator.describe().consumers]
    assert {} == idle(world)


async def test_buckets_that_nobody_holds_are_told() -> None:
    world = lead()
    for name in ("ada", "bob", "cyd"):
        world.register(name, shares=True)
        world.confirm("ada", 0) if 0 in world.subscription.holdings else None
    (segment,) = world.coordinator.describe().segments

    assert [(0, 8, "revoking"), (8, 16, "granted")] == [
        (s.first_bucket, s.end_bucket, s.status) for s in segment.shares
    ]
    world.leave("ada")
    assert {"bob", "cyd"} == set(world.holders().values())
    await world.coordinator.close()


async def test_who_is_idle_is_told_why() -> None:
    world = lead("CHECKPOINT")
    world.register("ada", shares=True), world.register("bob", shares=True)
    assert {"bob": "CHECKPOINT never shares, and every segment has a consumer"} == idle(world)

    world = lead()
    world.register("ada"), world.register("bob")
    assert "its client is too old" in idle(world)["bob"]

    world = lead()
    world.register("ada"), world.register("bob", shares=True)
    assert "no other consumer can share" in idle(world)["bob"]

    world = lead()
    world.register("ada", shares=True), world.register("bob", shares=True)
    assert {"bob": "a segment is on its way from one consumer to another"} == idle(world)


async def test_who_is_idle_because_segments_wait_is_told_so() -> None:
    world = lead("STREAM")
    world.register("ada"), world.register("bob")
    world.store(0, 1)
    world.split(0)
    assert idle(world)["bob"].endswith("; 2 of 3 segments wait for ancestors")
    world.leave("ada"), world.leave("bob")
    assert {} == idle_reasons(world.subscription, world.coordinator._assignment.gate)


async def test_who_is_idle_beyond_sixteen_is_told_so() -> None:
    world = lead()
    for number in range(17):
        world.register(f"c{number:02d}", shares=True)
        for place, holding in list(world.subscription.holdings.items()):
            if holding.revoked_at_ms is not None:
                world.confirm(holding.consumer, place)

    assert {"c16": "every segment is shared by 16 already"} == idle(world)
    await world.coordinator.close()


# --- who should rather get it -----------------------------------------------------------------------------------------

HOLDERS = {Share(0, 0, 8): "ada", Share(0, 8, 16): "bob", 1: "cyd"}
SPLIT = Layout.initial(2, 0).split(0, 5, 0)


def test_a_place_that_is_cut_otherwise_goes_to_who_reads_its_keys_already() -> None:
    heirs = heirs_of(HOLDERS, SPLIT, [Share(0, 8, 12), 0, Share(1, 0, 8)])

    assert {Share(0, 8, 12): ["bob", "ada"], 0: ["ada", "bob"], Share(1, 0, 8): ["cyd"]} == heirs


def test_a_share_of_a_child_goes_to_who_reads_the_same_buckets_of_its_parent() -> None:
    heirs = heirs_of(HOLDERS, SPLIT, [Share(2, 8, 16), Share(2, 0, 8), 3])

    assert {Share(2, 8, 16): ["bob", "ada"], Share(2, 0, 8): ["ada", "bob"], 3: ["ada", "bob"]} == heirs


def test_what_is_held_needs_no_heir() -> None:
    assert {} == heirs_of(HOLDERS, SPLIT, [Share(0, 0, 8), 1])
