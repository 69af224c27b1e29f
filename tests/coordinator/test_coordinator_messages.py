"""One subscription on its leader: what is sent again, and what people and metrics see."""

import asyncio

import pytest

from coordinator.ports import SilentObserver
from headgate.protocol import messages as m
from tests.support.subscription_environment import World, virtual_time

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world():
    """Four segments, STREAM in strict order, nobody registered."""
    with virtual_time():
        world = World(segments=4)
        world.lead(world.check)
    yield world
    await world.coordinator.close()


# --- what is lost on the way ------------------------------------------------------------------------------------------


async def test_a_heartbeat_gets_lost_grants_and_revocations_again(world: World) -> None:
    world.register("ada")
    world.register("bob")
    world.confirm("ada", 2)
    world.pushes.clear()
    world.heartbeat("bob", held=[])
    world.heartbeat("ada", held=[(0, 1), (1, 2), (3, 4)])

    assert [[2]] == [[grant.segment for grant in push.granted] for push in world.told("bob")]
    [told] = world.told("ada")
    assert [m.Revocation(segment=3, generation=4)] == told.revoked
    assert [] == told.granted


async def test_a_heartbeat_that_lacks_nothing_gets_nothing(world: World) -> None:
    world.register("ada")
    world.heartbeat("ada", held=[(0, 1), (1, 2), (2, 3), (3, 4)])

    assert [] == world.pushes


async def test_a_heartbeat_that_claims_too_much_is_told_to_stop(world: World) -> None:
    world.register("ada")
    world.heartbeat("ada", held=[(0, 1), (1, 2), (2, 3), (3, 4), (2, 1), (9, 9)])

    [told] = world.told("ada")
    assert [(2, 1, True), (9, 9, True)] == [(r.segment, r.generation, r.final) for r in told.revoked]


async def test_a_heartbeat_that_does_not_say_gets_revocations_alone(world: World) -> None:
    world.register("ada")
    world.heartbeat("ada")
    assert [] == world.pushes
    world.register("bob")
    world.pushes.clear()
    world.heartbeat("ada")

    assert [2, 3] == [revocation.segment for revocation in world.told("ada")[0].revoked]


async def test_many_grants_are_pushed_in_parts() -> None:
    """One message must stay far below the broker's limit."""
    world = World(segments=1024, type="QUEUE", order="none")
    world.lead()
    world.register("ada")
    world.register("bob")
    world.leave("ada")
    pushed = [len(push.granted) for push in world.told("bob")]

    assert [1000, 24] == pushed
    world.heartbeat("bob", held=[(5000, 1)])
    assert [(1000, 1), (24, 0)] == [(len(push.granted), len(push.revoked)) for push in world.told("bob")]


# --- what people see --------------------------------------------------------------------------------------------------


async def test_a_description_tells_who_reads_what_and_what_blocks_the_rest(world: World) -> None:
    world.store(0, 5)
    world.register("ada")
    world.split(0)
    world.register("bob")
    world.coordinator.client_gone("client-bob")
    described = world.coordinator.describe()

    assert [("ada", True, [0, 1, 2, 3]), ("bob", False, [])] == [
        (consumer.consumer, consumer.connected, consumer.segments) for consumer in described.consumers
    ]
    assert {0: "granted", 1: "granted", 2: "revoking", 3: "revoking", 4: "blocked", 5: "blocked"} == {
        segment.segment: segment.status for segment in described.segments
    }
    assert [0] == described.segments[4].blocked_by
    assert {4: (0,), 5: (0,)} == dict(world.coordinator.blocked)
    assert 2 == world.heartbeat("ada").blocked
    assert 2 == world.observer.blocked


async def test_a_description_without_consumers_says_waiting_and_after_draining_drained(world: World) -> None:
    assert {"waiting"} == {segment.status for segment in world.coordinator.describe().segments}
    world.register("ada")
    world.split(0)
    await world.run(1)

    assert ["drained", "granted"] == [world.coordinator.describe().segments[n].status for n in (0, 4)]


async def test_close_takes_blocked_segments_off_the_count(world: World) -> None:
    world.store(0, 5)
    world.register("ada")
    world.split(0)
    assert 2 == world.observer.blocked
    await world.coordinator.close()

    assert 0 == world.observer.blocked


async def test_an_observer_may_be_left_out(world: World) -> None:
    assert isinstance(SilentObserver(), SilentObserver)
    world.observer = None
    await world.coordinator.close()
    world.lead(world.check)
    world.register("ada")
    world.register("bob")
    world.confirm("ada", 2)
    world.split(0)
    await asyncio.sleep(1)
    world.leave("ada")

    assert {1, 2, 3, 4, 5} == set(world.holders())
