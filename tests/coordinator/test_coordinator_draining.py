"""One subscription on its leader: blocked children, polling, seeks, types and order."""

import asyncio

import pytest
from structlog.testing import capture_logs

from headgate.model import entries as e
from headgate.protocol import messages as m
from metrics.events import DrainPollCompleted, SegmentsDrained
from shard.state.subscription import Subscription
from shard.subscriptions.two_witnesses import DrainClaim
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness

pytestmark = pytest.mark.looptime


@pytest.fixture
def harness(after_split: CoordinatorHarness) -> CoordinatorHarness:
    return after_split


# Blocked and unblocked children


async def test_children_wait_until_the_parent_is_drained_and_go_to_its_holder(harness: CoordinatorHarness) -> None:
    await harness.run_with_heartbeats(100)
    assert {0: "ada"} == harness.holders()
    harness.acknowledge("ada", 0, 4)
    await harness.run_with_heartbeats(1000)
    assert {0: "ada"} == harness.holders()

    harness.pushes.clear()
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    assert {1: "ada", 2: "ada"} == harness.holders()
    [push] = harness.take_pushes("ada")
    assert [1, 2] == [grant.segment for grant in push.granted]
    assert [m.Revocation(segment=0, generation=1, final=True)] == push.revoked
    assert "drained" == harness.proposed(e.SegmentReleased)[0].reason


async def test_an_acknowledgement_of_the_sealed_end_starts_a_check_at_once(harness: CoordinatorHarness) -> None:
    await harness.run_with_heartbeats(300)
    checks_before = len(harness.checker.checks)
    harness.acknowledge("ada", 0, 4)
    assert checks_before == len(harness.checker.checks)
    await harness.run(0.1)
    assert checks_before == len(harness.checker.checks)
    harness.acknowledge("ada", 0, 5)
    await harness.run(1)

    assert [300.1] == harness.checker.checked_at[checks_before:]
    (drained,) = harness.observer.of(SegmentsDrained)
    assert (1, pytest.approx(0.05)) == (drained.count, drained.waited_seconds)


async def test_a_split_of_an_acknowledged_segment_starts_a_check_at_once(lead: Lead) -> None:
    """No acknowledgement will follow: an idle segment is drained as soon as it is sealed."""
    harness = lead("ada", records=5)
    harness.acknowledge("ada", 0, 5)
    harness.split(0)
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


@pytest.mark.parametrize("with_drain_check", [True, False], ids=["silent check", "no check"])
async def test_a_split_of_an_empty_segment_opens_its_children_without_a_check(lead: Lead, with_drain_check) -> None:
    harness = lead("ada", with_drain_check=with_drain_check)
    harness.checker.reports_nothing_drained = True
    harness.split(0)
    harness.split(1)

    assert {2: "ada", 3: "ada", 4: "ada"} == harness.holders()
    assert [] == harness.checker.checks


async def test_a_segment_that_was_skipped_by_a_seek_opens_its_children_without_a_check(lead: Lead) -> None:
    harness = lead("ada", records=5)
    harness.checker.reports_nothing_drained = True
    harness.seek({0: 5})
    harness.split(0)
    assert {1: "ada", 2: "ada"} == harness.holders()

    harness.seek({0: 4})
    assert {0: "ada"} == harness.holders()
    harness.seek({0: 5})
    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_acknowledged_records_are_counted_even_before_a_later_end(lead: Lead) -> None:
    """The position is at the end, but the subscription started before it."""
    harness = lead("ada", records=5)
    harness.checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    harness.split(0)

    assert {0: "ada"} == harness.holders()


async def test_generations_of_empty_segments_unblock_without_a_pause(harness: CoordinatorHarness) -> None:
    """Segments 1 and 3 were split before they received a record. Only segment 0 has records to acknowledge."""
    harness.split(1)
    harness.split(3)
    harness.register("bob")
    assert {0: "ada"} == harness.holders()
    assert dict.fromkeys((2, 4, 5, 6), (0,)) == dict(harness.coordinator.blocked)
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.2)

    assert {2, 4, 5, 6} == set(harness.holders())
    assert {} == dict(harness.coordinator.blocked)


async def test_a_grandchild_goes_to_the_holder_of_its_nearest_ancestor(lead: Lead) -> None:
    """Segment 2 was never held. By name only, 4 would go to ada and 5 to bob."""
    harness = lead("bob", "ada", segments=2)
    harness.confirm("bob", 1)
    harness.store(0, 5)
    harness.split(0)
    harness.split(2)
    harness.acknowledge("bob", 0, 5)
    await harness.run(0.1)

    assert {1: "ada", 3: "bob", 4: "bob", 5: "ada"} == harness.holders()


async def test_a_merged_child_waits_for_both_parents(lead: Lead) -> None:
    harness = lead("ada", "bob", segments=2)
    harness.confirm("ada", 1)
    harness.store(0, 1)
    harness.store(1, 1)
    harness.merge(0, 1)
    harness.acknowledge("ada", 0, 1)
    await harness.run(5)
    assert {1: "bob"} == harness.holders()
    harness.acknowledge("bob", 1, 1)
    await harness.run(5)

    assert {2: "bob"} == harness.holders()


async def test_pruning_does_not_affect_the_children(harness: CoordinatorHarness) -> None:
    harness.acknowledge("ada", 0, 5)
    await harness.run(1)
    before = len(harness.entries)
    harness.prune(0)

    assert before + 1 == len(harness.entries)
    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_pruning_held_or_moving_segments_leaves_no_state_behind(lead: Lead) -> None:
    """Retention may prune a sealed segment that a CHECKPOINT consumer still holds."""
    harness = lead("ada", segments=2, type="CHECKPOINT")
    harness.split(1)
    for name in ("bob", "cyd", "dan"):
        harness.register(name)
    assert {0: "ada"} == harness.holders()
    harness.prune(1)
    assert [0] == [grant.segment for grant in harness.register("ada").grants]
    harness.confirm("ada", 2)
    harness.confirm("ada", 3)

    assert harness.coordinator.handovers_complete
    assert {0, 2, 3} == set(harness.holders())
    harness.split(0)
    harness.prune(0)
    assert [4] == [grant.segment for grant in harness.register("ada").grants]


@pytest.mark.parametrize(("kind", "order"), [("QUEUE", "none"), ("CHECKPOINT", "none"), ("STREAM", "none")])
async def test_without_a_gate_children_never_wait(lead: Lead, kind: str, order: str) -> None:
    harness = lead("ada", type=kind, order=order, records=5)
    harness.split(0)

    assert {0: "ada", 1: "ada", 2: "ada"} == harness.holders()


async def test_a_queue_retires_acknowledged_segments(lead: Lead) -> None:
    harness = lead("ada", type="QUEUE", records=5)
    harness.split(0)
    harness.acknowledge("ada", 0, 5, first_offset=2)
    await harness.run_with_heartbeats(100)
    assert {0: "ada", 1: "ada", 2: "ada"} == harness.holders()
    harness.acknowledge("ada", 0, 2, first_offset=0)
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_a_checkpoint_subscription_is_never_polled(lead: Lead) -> None:
    harness = lead("ada", type="CHECKPOINT", records=5)
    harness.split(0)
    harness.coordinator.install_drain_checker(harness.checker)
    await harness.run_with_heartbeats(100)

    assert [] == harness.checker.checks
    assert {0, 1, 2} == set(harness.holders())


async def test_without_a_drain_check_children_stay_blocked_until_one_is_installed(lead: Lead) -> None:
    """A missing drain check must not break order. A second installation is ignored."""
    harness = lead("ada", with_drain_check=False)
    harness.store(0, 1)
    harness.split(0)
    harness.acknowledge("ada", 0, 1)
    await harness.run_with_heartbeats(1000)
    assert {0: "ada"} == harness.holders()

    checks = []

    async def never(subscription: Subscription, segments: frozenset[int]) -> dict[int, DrainClaim]:
        checks.append(segments)
        return {}

    harness.coordinator.install_drain_checker(None)
    harness.coordinator.install_drain_checker(harness.checker)
    harness.coordinator.install_drain_checker(never)
    await harness.run(0.1)
    assert {1: "ada", 2: "ada"} == harness.holders()
    assert [] == checks


async def test_a_drain_checker_that_becomes_ready_is_polled_at_once(harness: CoordinatorHarness) -> None:
    harness.checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    await harness.run_with_heartbeats(300)
    harness.checker.reports_nothing_drained = False
    harness.coordinator.drain_checker_ready()
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


# Polling


async def test_polls_back_off_and_each_progress_event_resets_the_backoff(harness: CoordinatorHarness) -> None:
    events = {
        "register": lambda: harness.register("bob"),
        "reconnect": lambda: harness.register("ada"),
        "heartbeat of a disconnected consumer": lambda: (
            harness.coordinator.client_disconnected("anonymous/client-bob"),
            harness.heartbeat("bob"),
        ),
        "layout": lambda: (harness.store(1, 1), harness.split(1)),
        "seek": lambda: harness.seek({0: 1}),
    }
    for name, event in events.items():
        await harness.run_with_heartbeats(1000)
        harness.checker.checks.clear()
        event()
        now = asyncio.get_running_loop().time()
        await harness.run(2.3)
        assert [now + 2] == pytest.approx(harness.checker.checked_at), name


async def test_polling_stops_with_the_last_consumer_and_restarts_with_the_next(harness: CoordinatorHarness) -> None:
    await harness.run(3)
    harness.leave("ada")
    await asyncio.sleep(0)
    assert harness.coordinator.explanation_context().next_poll_seconds is None
    harness.checker.checks.clear()
    await harness.run_with_heartbeats(1000)
    assert [] == harness.checker.checks

    harness.register("bob")
    await harness.run(2.3)
    assert 1 == len(harness.checker.checks)


async def test_polling_stops_when_everything_is_drained(harness: CoordinatorHarness) -> None:
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.5)
    harness.checker.checks.clear()
    await harness.run_with_heartbeats(1000)

    assert [] == harness.checker.checks


async def test_a_checker_that_misses_a_drained_segment_only_delays_its_children(harness: CoordinatorHarness) -> None:
    harness.checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    await harness.run(10)
    assert {0: "ada"} == harness.holders()
    harness.checker.reports_nothing_drained = False
    harness.heartbeat("ada")
    await harness.run(14)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_a_result_for_a_segment_that_is_not_sealed_is_ignored(harness: CoordinatorHarness) -> None:
    """The coordinator does not rely on the poller for this."""
    harness.coordinator._drain.record({1: DrainClaim(0), 2: DrainClaim(0), 77: DrainClaim(0)})

    assert [] == harness.proposed(e.SegmentsDrained)


# Two witnesses


async def test_a_claim_that_the_leader_contradicts_opens_nothing_and_is_reported_once(
    harness: CoordinatorHarness,
) -> None:
    """As of a Spark process that counts another ledger, in which everything was acknowledged."""
    harness.checker.claims = {0: DrainClaim(5)}
    harness.acknowledge("ada", 0, 2)
    with capture_logs() as logs:
        await harness.run_with_heartbeats(100)

    assert [] == harness.proposed(e.SegmentsDrained)
    assert {0: "ada"} == harness.holders()
    (logged,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert ("drain_check.contradicted", "orders", "billing", 0) == tuple(
        logged[name] for name in ("event", "topic", "subscription", "segment")
    )
    assert logged["reason"] == "Spark says that it is drained to 5; this leader knows 2 of 5 as acknowledged"
    polls = len(harness.checker.checks)
    assert polls < 10, "a contradiction is no progress: pauses grow"
    assert {"contradicted"} == {event.outcome for event in harness.observer.of(DrainPollCompleted)}

    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_a_contradicted_claim_does_not_hold_up_the_others_of_its_answer(lead: Lead) -> None:
    harness = lead("ada", records=5, segments=2)
    harness.split(0)
    harness.split(1)
    harness.checker.claims = {1: DrainClaim(5)}
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)

    assert [[0]] == [entry.segments for entry in harness.proposed(e.SegmentsDrained)]


async def test_after_close_nothing_is_polled_or_proposed(harness: CoordinatorHarness) -> None:
    harness.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.01)
    assert 1 == len(harness.checker.checks)
    before = len(harness.entries)
    await harness.coordinator.close()
    await asyncio.sleep(1000)

    assert 1 == len(harness.checker.checks)
    assert before == len(harness.entries)


async def test_an_exception_while_recording_drained_segments_is_raised_by_the_tick(harness: CoordinatorHarness) -> None:

    def broken(*entries: e.AnyEntry) -> None:
        raise AssertionError("a bug")

    harness.acknowledge("ada", 0, 5)
    harness.propose = broken
    with pytest.raises(AssertionError, match="a bug"):
        await harness.run(1)


# Seeks


async def test_a_seek_blocks_the_children_again_and_reissues_all_grants(harness: CoordinatorHarness) -> None:
    harness.register("bob")
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    assert {1: "ada", 2: "bob"} == harness.holders()
    harness.pushes.clear()
    harness.seek({0: 2})

    assert {0} == set(harness.holders())
    assert [(1, 2, True)] == [
        (r.segment, r.generation, r.final) for push in harness.take_pushes("ada") for r in push.revoked
    ]
    assert {"drained", "rewound"} == {entry.reason for entry in harness.proposed(e.SegmentReleased)}
    await harness.run_with_heartbeats(100)
    assert {0} == set(harness.holders())


async def test_a_seek_keeps_the_holders_of_segments(lead: Lead) -> None:
    """Generations are new. By name only, the two consumers would swap segments."""
    harness = lead("bob", "ada", segments=2)
    harness.confirm("bob", 1)
    assert {0: "bob", 1: "ada"} == harness.holders()
    generations = {holding.generation for holding in harness.subscription.holdings.values()}
    harness.seek({1: 0})

    assert {0: "bob", 1: "ada"} == harness.holders()
    assert not generations & {holding.generation for holding in harness.subscription.holdings.values()}


async def test_a_check_result_from_before_a_seek_is_ignored(harness: CoordinatorHarness) -> None:
    """The check starts at the old positions and ends after the seek."""
    harness.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.04)
    assert 1 == len(harness.checker.checks)
    harness.subscription.positions[0] = 5  # the check sees this position in any case
    harness.seek({1: 0})
    await asyncio.sleep(0.02)
    assert [] == harness.proposed(e.SegmentsDrained)

    await harness.run(0.2)
    assert [1] == [entry.seek_generation for entry in harness.proposed(e.SegmentsDrained)]


# Types and order


async def test_an_unknown_type_has_no_gate_and_no_drain_check_until_a_stream_registers(lead: Lead) -> None:
    with capture_logs() as logs:
        harness = lead(type=None, records=5)
        harness.split(0)
        await harness.run_with_heartbeats(100)
    assert {} == dict(harness.coordinator.blocked)
    assert [] == harness.checker.checks
    assert "drain_checker.installed" not in {line["event"] for line in logs}

    with capture_logs() as logs:
        answer = harness.register("ada", type="STREAM")
    assert "drain_checker.installed" in {line["event"] for line in logs}
    assert [0] == [grant.segment for grant in answer.grants]
    assert {1: (0,), 2: (0,)} == dict(harness.coordinator.blocked)
    assert ("STREAM", "strict") == (harness.subscription.type, harness.subscription.order)
    await harness.run(2.3)
    assert 1 == len(harness.checker.checks)
    assert "invalid" == harness.register("bob", type="CHECKPOINT").verdict


async def test_an_unknown_type_that_becomes_checkpoint_gets_no_gate(lead: Lead) -> None:
    harness = lead(type=None)
    checker = harness.checker
    harness.store(0, 5)
    harness.split(0)
    answer = harness.register("ada", type="CHECKPOINT")
    await harness.run(10)

    assert [0, 1, 2] == [grant.segment for grant in answer.grants]
    assert [] == checker.checks


async def test_order_can_be_relaxed_and_restored_while_consumers_run(harness: CoordinatorHarness) -> None:
    harness.register("bob", order="none")
    assert {0, 1, 2} == set(harness.holders())
    harness.register("cyd")
    assert "none" == harness.subscription.order

    harness.register("dan", order="strict")
    held = {s for s, holding in harness.subscription.holdings.items() if holding.revoked_at_ms is None}
    assert held <= {0}
    assert {1: (0,), 2: (0,)} == dict(harness.coordinator.blocked)


async def test_a_returning_consumer_does_not_undo_a_later_change_of_order(harness: CoordinatorHarness) -> None:
    """Consumers register again after each change of leader, with the same request."""
    harness.register("bob", order="strict")
    harness.propose(
        e.SubscriptionConfigured(topic_id=1, subscription_id=2, subscription_type="STREAM", order="none", token="o")
    )
    harness.coordinator.order_changed()
    harness.coordinator.adapt_to_order()
    harness.register("bob", order="strict")

    assert "none" == harness.subscription.order
    assert {0, 1, 2} == set(harness.holders())


async def test_a_new_leader_tells_the_same_time_since_a_segment_is_blocked(harness: CoordinatorHarness) -> None:
    """An alert above half an hour would otherwise never fire where leaders change more often."""
    harness.checker.reports_nothing_drained = True
    await harness.run_with_heartbeats(30)
    await harness.coordinator.close()
    harness.lead()

    assert 30 == round(harness.coordinator.longest_blocked_seconds)


async def test_the_longest_blocked_segment_is_timed_from_its_creation(harness: CoordinatorHarness) -> None:
    """Blocked times of different segments, or of one segment at different times, do not add up."""
    harness.checker.reports_nothing_drained = True
    await harness.run_with_heartbeats(30)
    harness.store(1, 1)
    harness.split(1)
    await harness.run_with_heartbeats(10)
    assert 40 == round(harness.coordinator.longest_blocked_seconds)

    harness.seek({0: 5})
    assert 40 > harness.coordinator.longest_blocked_seconds
    harness.seek({0: 5, 1: 1})
    assert 0 == harness.coordinator.longest_blocked_seconds
    harness.seek({0: 4})
    assert 0 == harness.coordinator.longest_blocked_seconds
    await harness.run_with_heartbeats(10)
    assert 10 == round(harness.coordinator.longest_blocked_seconds)
