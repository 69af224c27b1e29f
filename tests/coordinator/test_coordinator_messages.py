"""One subscription on its leader: resent messages, descriptions and reported events."""

import asyncio

from structlog.testing import capture_logs

from coordinator.assignment_reconciler import MAX_MOVES_PER_TURN, MAX_REPEATED_GRANTS
from headgate.protocol.replies import Revocation
from shard.steps import complete
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness

# The log


async def test_a_rebalance_is_one_line_of_the_log_however_many_segments_move(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    with capture_logs() as logs:
        harness.register("bob")
        harness.confirm_all()
    assert {"ada", "bob"} == set(harness.holders().values()), "segments moved"
    changes = [(each["log_level"], each["reason"]) for each in logs if each["event"] == "assignment.changed"]
    assert [("info", "consumer registered"), ("debug", "confirmed"), ("debug", "confirmed")] == changes


# Lost messages


async def test_a_heartbeat_triggers_the_resend_of_lost_grants_and_revocations(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.confirm("ada", 2)
    harness.pushes.clear()
    harness.heartbeat("bob", held=[])
    harness.heartbeat("ada", held=[(0, 1), (1, 2)])

    bobs = [([grant.segment for grant in push.granted], push.revoked) for push in harness.take_pushes("bob")]
    assert [([2], [])] == bobs
    [push] = harness.take_pushes("ada")
    assert [Revocation(segment=3, generation=4)] == push.revoked
    assert [] == push.granted


async def test_a_heartbeat_with_stale_grants_triggers_final_revocations(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    harness.heartbeat("ada", held=[(0, 1), (1, 2), (2, 3), (3, 4), (2, 1), (9, 9)])

    [push] = harness.take_pushes("ada")
    assert [(2, 1, True), (9, 9, True)] == [(r.segment, r.generation, r.final) for r in push.revoked]


async def test_one_heartbeat_repeats_a_limited_number_of_grants_and_the_next_one_the_rest(lead: Lead) -> None:
    harness = lead("ada", segments=MAX_REPEATED_GRANTS + 2)
    await harness.run(0.1)
    harness.pushes.clear()
    held = [(5000 + n, 1) for n in range(MAX_REPEATED_GRANTS + 2)]
    harness.heartbeat("ada", held=held)
    [first] = harness.take_pushes("ada")
    assert (MAX_REPEATED_GRANTS, MAX_REPEATED_GRANTS) == (len(first.granted), len(first.revoked))

    ended = {(each.segment, each.generation) for each in first.revoked}
    held = [each for each in held if each not in ended] + [(each.segment, each.generation) for each in first.granted]
    harness.heartbeat("ada", held=held)
    [second] = harness.take_pushes("ada")
    assert (2, 2) == (len(second.granted), len(second.revoked))


async def test_many_moves_are_made_in_several_turns_of_the_loop(lead: Lead) -> None:
    """The loop must not wait for thousands of entries, nor a client for a message beyond the broker's limit."""
    harness = lead("ada", segments=MAX_MOVES_PER_TURN + 24, type="QUEUE")
    await harness.run(0.1)
    harness.leave("ada")
    harness.register("bob")
    assert [] == harness.take_pushes("bob")
    harness.heartbeat("bob", held=[])
    assert [MAX_MOVES_PER_TURN] == [len(push.granted) for push in harness.take_pushes("bob")]
    assert not harness.coordinator.reconciler.handovers_complete

    await harness.run(0.1)
    assert [24] == [len(push.granted) for push in harness.take_pushes("bob")]
    assert harness.coordinator.reconciler.handovers_complete
    assert {"bob"} == set(harness.holders().values())

    harness.seek({})
    assert [] == harness.take_pushes("bob"), "the holders are notified in a later turn, after the decision"
    await harness.run(0.1)
    pushes = harness.take_pushes("bob")
    assert [(True, 0), (False, MAX_MOVES_PER_TURN), (False, 24)] == [
        (len(push.revoked) == MAX_MOVES_PER_TURN + 24, len(push.granted)) for push in pushes
    ]
    assert all(each.final for each in pushes[0].revoked)

    harness.seek({})
    entries, closing = len(harness.entries), harness.coordinator.close()
    await asyncio.sleep(0.1)
    await closing
    assert entries == len(harness.entries), "those of a subscription that was deleted meanwhile could not be applied"


async def test_a_description_names_holders_and_blocking_segments(harness: CoordinatorHarness) -> None:
    harness.store(0, 5)
    harness.register("ada")
    harness.split(0)
    harness.register("bob")
    harness.disconnect("anonymous/client-bob")
    described = complete(harness.coordinator.describe())

    assert [("ada", True, (0, 1, 2, 3)), ("bob", False, ())] == [
        (consumer.consumer, consumer.connected, consumer.segments) for consumer in described.consumers
    ]
    assert {0: "granted", 1: "granted", 2: "revoking", 3: "revoking", 4: "blocked", 5: "blocked"} == {
        segment.segment: segment.status for segment in described.segments
    }
    assert (0,) == described.segments[4].blocked_by
    assert {4: (0,), 5: (0,)} == dict(harness.coordinator.reconciler.gate.blocked)
    assert 2 == harness.heartbeat("ada").blocked
