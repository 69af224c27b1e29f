"""One subscription on its leader: what is sent again, and what people and metrics see."""

import asyncio

import pytest

from headgate.protocol import messages as m
from metrics.events import BlockedSegmentsChanged
from tests.coordinator.conftest import Lead
from tests.support.subscription_environment import CoordinatorHarness, virtual_time

pytestmark = pytest.mark.looptime


def blocked_segments(harness: CoordinatorHarness) -> int:
    return sum(event.change for event in harness.observer.of(BlockedSegmentsChanged))


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """A STREAM with four segments and no consumer."""
    with virtual_time():
        return lead(segments=4)


# --- what is lost on the way ------------------------------------------------------------------------------------------


async def test_a_heartbeat_gets_lost_grants_and_revocations_again(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.confirm("ada", 2)
    harness.pushes.clear()
    harness.heartbeat("bob", held=[])
    harness.heartbeat("ada", held=[(0, 1), (1, 2), (3, 4)])

    assert [[2]] == [[grant.segment for grant in push.granted] for push in harness.take_pushes("bob")]
    [push] = harness.take_pushes("ada")
    assert [m.Revocation(segment=3, generation=4)] == push.revoked
    assert [] == push.granted


async def test_a_heartbeat_that_lacks_nothing_gets_nothing(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    harness.heartbeat("ada", held=[(0, 1), (1, 2), (2, 3), (3, 4)])

    assert [] == harness.pushes


async def test_a_heartbeat_that_claims_too_much_is_told_to_stop(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    harness.heartbeat("ada", held=[(0, 1), (1, 2), (2, 3), (3, 4), (2, 1), (9, 9)])

    [push] = harness.take_pushes("ada")
    assert [(2, 1, True), (9, 9, True)] == [(r.segment, r.generation, r.final) for r in push.revoked]


async def test_a_heartbeat_that_does_not_say_gets_revocations_alone(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    harness.heartbeat("ada")
    assert [] == harness.pushes
    harness.register("bob")
    harness.pushes.clear()
    harness.heartbeat("ada")

    assert [2, 3] == [revocation.segment for revocation in harness.take_pushes("ada")[0].revoked]


async def test_many_grants_are_pushed_in_parts(lead: Lead) -> None:
    """One message must stay far below the broker's limit."""
    harness = lead("ada", "bob", segments=1024, type="QUEUE")
    harness.leave("ada")
    pushed = [len(push.granted) for push in harness.take_pushes("bob")]

    assert [1000, 24] == pushed
    harness.heartbeat("bob", held=[(5000, 1)])
    assert [(1000, 1), (24, 0)] == [(len(push.granted), len(push.revoked)) for push in harness.take_pushes("bob")]


# --- what people see --------------------------------------------------------------------------------------------------


async def test_a_description_tells_who_reads_what_and_what_blocks_the_rest(harness: CoordinatorHarness) -> None:
    harness.store(0, 5)
    harness.register("ada")
    harness.split(0)
    harness.register("bob")
    harness.coordinator.client_disconnected("client-bob")
    described = harness.coordinator.describe()

    assert [("ada", True, [0, 1, 2, 3]), ("bob", False, [])] == [
        (consumer.consumer, consumer.connected, consumer.segments) for consumer in described.consumers
    ]
    assert {0: "granted", 1: "granted", 2: "revoking", 3: "revoking", 4: "blocked", 5: "blocked"} == {
        segment.segment: segment.status for segment in described.segments
    }
    assert [0] == described.segments[4].blocked_by
    assert {4: (0,), 5: (0,)} == dict(harness.coordinator.blocked)
    assert 2 == harness.heartbeat("ada").blocked
    assert 2 == blocked_segments(harness)


async def test_a_description_without_consumers_says_waiting_and_after_draining_drained(
    harness: CoordinatorHarness,
) -> None:
    assert {"waiting"} == {segment.status for segment in harness.coordinator.describe().segments}
    harness.register("ada")
    harness.split(0)
    await harness.run(1)

    assert ["drained", "granted"] == [harness.coordinator.describe().segments[n].status for n in (0, 4)]


async def test_close_takes_blocked_segments_off_the_count(harness: CoordinatorHarness) -> None:
    harness.store(0, 5)
    harness.register("ada")
    harness.split(0)
    assert 2 == blocked_segments(harness)
    await harness.coordinator.close()

    assert 0 == blocked_segments(harness)


async def test_an_observer_may_be_left_out(harness: CoordinatorHarness) -> None:
    harness.observer = None
    await harness.coordinator.close()
    harness.lead()
    harness.join("ada", "bob")
    harness.confirm("ada", 2)
    harness.split(0)
    await asyncio.sleep(1)
    harness.leave("ada")

    assert {1, 2, 3, 4, 5} == set(harness.holders())
