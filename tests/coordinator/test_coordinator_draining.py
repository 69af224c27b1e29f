"""One subscription on its leader: children held back and let through, polling and seeks."""

import asyncio

import pytest
from structlog.testing import capture_logs

from coordinator.state.subscription import Subscription
from headgate.model import entries as e
from headgate.protocol import messages as m
from metrics.events import SegmentsDrained
from tests.coordinator.conftest import Lead
from tests.support.subscription_environment import CoordinatorHarness

pytestmark = pytest.mark.looptime


@pytest.fixture
def harness(after_split: CoordinatorHarness) -> CoordinatorHarness:
    return after_split


# --- letting children through -----------------------------------------------------------------------------------------


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


async def test_an_acknowledgement_that_reaches_the_sealed_end_is_followed_by_a_question_at_once(
    harness: CoordinatorHarness,
) -> None:
    await harness.run_with_heartbeats(300)
    asked_before = len(harness.checker.checks)
    harness.acknowledge("ada", 0, 4)
    assert asked_before == len(harness.checker.checks)
    await harness.run(0.1)
    assert asked_before == len(harness.checker.checks)
    harness.acknowledge("ada", 0, 5)
    await harness.run(1)

    assert [300.1] == harness.checker.checked_at[asked_before:]
    (drained,) = harness.observer.of(SegmentsDrained)
    assert (1, pytest.approx(0.05)) == (drained.count, drained.waited_seconds)


async def test_a_split_behind_the_last_acknowledgement_asks_at_once(lead: Lead) -> None:
    """An idle stream is drained in the moment in which it is sealed: nobody will acknowledge anything more."""
    harness = lead("ada")
    harness.split(0)
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_generations_of_empty_segments_are_let_through_without_a_pause(harness: CoordinatorHarness) -> None:
    """1 and 3 were split before they received anything; the nearest holder in their line is 0's."""
    harness.split(1)
    harness.split(3)
    harness.register("bob")
    assert {0: "ada"} == harness.holders()
    assert {1: (0,), 2: (0,), 3: (1, 0), 4: (1, 0), 5: (3, 1, 0), 6: (3, 1, 0)} == dict(harness.coordinator.blocked)
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.2)

    assert {2, 4, 5, 6} == set(harness.holders())
    assert {} == dict(harness.coordinator.blocked)


async def test_a_grandchild_goes_to_the_nearest_holder_in_its_line(lead: Lead) -> None:
    """2 was empty and never held. By name alone, 4 would have gone to ada and 5 to bob."""
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


async def test_pruning_changes_nothing_for_the_children(harness: CoordinatorHarness) -> None:
    harness.acknowledge("ada", 0, 5)
    await harness.run(1)
    before = len(harness.entries)
    harness.prune(0)

    assert before + 1 == len(harness.entries)
    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_pruning_what_is_held_or_changing_hands_leaves_nothing_behind(lead: Lead) -> None:
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
async def test_without_the_gate_children_never_wait(lead: Lead, kind: str, order: str) -> None:
    harness = lead("ada", type=kind, order=order, records=5)
    harness.split(0)

    assert {0: "ada", 1: "ada", 2: "ada"} == harness.holders()


async def test_a_queue_retires_what_it_has_acknowledged(lead: Lead) -> None:
    harness = lead("ada", type="QUEUE", records=5)
    harness.split(0)
    harness.acknowledge("ada", 0, 5, first_offset=2)
    await harness.run_with_heartbeats(100)
    assert {0: "ada", 1: "ada", 2: "ada"} == harness.holders()
    harness.acknowledge("ada", 0, 2, first_offset=0)
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_checkpoint_is_never_asked_about(lead: Lead) -> None:
    harness = lead("ada", type="CHECKPOINT", records=5)
    harness.split(0)
    harness.coordinator.install_drain_checker(harness.checker)
    await harness.run_with_heartbeats(100)

    assert [] == harness.checker.checks
    assert {0, 1, 2} == set(harness.holders())


async def test_without_a_checker_the_gate_holds_until_one_is_installed(lead: Lead) -> None:
    """No checker is no reason to break order. The second one installed is ignored."""
    harness = lead("ada", with_drain_check=False)
    harness.store(0, 1)
    harness.split(0)
    harness.acknowledge("ada", 0, 1)
    await harness.run_with_heartbeats(1000)
    assert {0: "ada"} == harness.holders()

    asked = []

    async def never(subscription: Subscription, segments: frozenset[int]) -> frozenset[int]:
        asked.append(segments)
        return frozenset()

    harness.coordinator.install_drain_checker(None)
    harness.coordinator.install_drain_checker(harness.checker)
    harness.coordinator.install_drain_checker(never)
    await harness.run(0.1)
    assert {1: "ada", 2: "ada"} == harness.holders()
    assert [] == asked


async def test_a_checker_that_is_back_is_asked_at_once(harness: CoordinatorHarness) -> None:
    harness.checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    await harness.run_with_heartbeats(300)
    harness.checker.reports_nothing_drained = False
    harness.coordinator.drain_checker_ready()
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


# --- polling ----------------------------------------------------------------------------------------------------------


async def test_polls_become_rare_and_every_progress_event_makes_them_frequent_again(
    harness: CoordinatorHarness,
) -> None:
    events = {
        "register": lambda: harness.register("bob"),
        "reconnect": lambda: harness.register("ada"),
        "heartbeat after silence": lambda: (
            harness.coordinator.client_disconnected("client-bob"),
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


async def test_polling_stops_when_the_last_consumer_leaves_and_begins_again_with_the_next(
    harness: CoordinatorHarness,
) -> None:
    await harness.run(3)
    harness.leave("ada")
    await asyncio.sleep(0)
    assert not harness.coordinator._poller.running
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


async def test_a_checker_that_is_blind_for_a_while_costs_time_and_nothing_else(harness: CoordinatorHarness) -> None:
    harness.checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    await harness.run(10)
    assert {0: "ada"} == harness.holders()
    harness.checker.reports_nothing_drained = False
    harness.heartbeat("ada")
    await harness.run(14)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_an_answer_about_a_segment_that_is_not_sealed_is_left_out(harness: CoordinatorHarness) -> None:
    """Even if the poller let it through."""
    harness.coordinator._on_drained(frozenset({1, 2, 77}))

    assert [] == harness.proposed(e.SegmentsDrained)


async def test_after_close_nothing_is_asked_or_written(harness: CoordinatorHarness) -> None:
    harness.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.01)
    assert 1 == len(harness.checker.checks)
    before = len(harness.entries)
    await harness.coordinator.close()
    await asyncio.sleep(1000)

    assert 1 == len(harness.checker.checks)
    assert before == len(harness.entries)


async def test_a_bug_in_what_follows_from_an_answer_comes_out_of_the_tick(harness: CoordinatorHarness) -> None:

    def broken(*entries: e.AnyEntry) -> None:
        raise AssertionError("a bug")

    harness.acknowledge("ada", 0, 5)
    harness.propose = broken
    with pytest.raises(AssertionError, match="a bug"):
        await harness.run(1)


# --- seeking ----------------------------------------------------------------------------------------------------------


async def test_a_seek_closes_the_gate_again_and_everybody_begins_anew(harness: CoordinatorHarness) -> None:
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


async def test_a_seek_leaves_segments_with_their_holders(lead: Lead) -> None:
    """With new generations. By name alone, the two would have changed places."""
    harness = lead("bob", "ada", segments=2)
    harness.confirm("bob", 1)
    assert {0: "bob", 1: "ada"} == harness.holders()
    generations = {holding.generation for holding in harness.subscription.holdings.values()}
    harness.seek({1: 0})

    assert {0: "bob", 1: "ada"} == harness.holders()
    assert not generations & {holding.generation for holding in harness.subscription.holdings.values()}


async def test_an_answer_from_before_a_seek_is_worth_nothing(harness: CoordinatorHarness) -> None:
    """The check began at the old positions and ends after the seek."""
    harness.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.04)
    assert 1 == len(harness.checker.checks)
    harness.subscription.positions[0] = 5  # what the check will see, whatever the seek did
    harness.seek({1: 0})
    await asyncio.sleep(0.02)
    assert [] == harness.proposed(e.SegmentsDrained)

    await harness.run(0.2)
    assert [1] == [entry.seek_generation for entry in harness.proposed(e.SegmentsDrained)]


# --- types and order --------------------------------------------------------------------------------------------------


async def test_a_subscription_of_unknown_type_has_no_gate_and_no_checker_until_a_stream_shows_itself(
    lead: Lead,
) -> None:
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


async def test_an_unknown_type_that_turns_out_to_be_a_checkpoint_gets_no_gate(lead: Lead) -> None:
    harness = lead(type=None)
    checker = harness.checker
    harness.store(0, 5)
    harness.split(0)
    answer = harness.register("ada", type="CHECKPOINT")
    await harness.run(10)

    assert [0, 1, 2] == [grant.segment for grant in answer.grants]
    assert [] == checker.checks


async def test_order_can_be_weakened_and_restored_on_a_live_subscription(harness: CoordinatorHarness) -> None:
    harness.register("bob", order="none")
    assert {0, 1, 2} == set(harness.holders())
    harness.register("cyd")
    assert "none" == harness.subscription.order

    harness.register("dan", order="strict")
    held = {s for s, holding in harness.subscription.holdings.items() if holding.revoked_at_ms is None}
    assert held <= {0}
    assert {1: (0,), 2: (0,)} == dict(harness.coordinator.blocked)


async def test_who_comes_back_does_not_undo_an_order_that_was_changed_since(harness: CoordinatorHarness) -> None:
    """Consumers register again with every change of leader, and say the same each time."""
    harness.register("bob", order="strict")
    harness.propose(
        e.SubscriptionConfigured(topic_id=1, subscription_id=2, subscription_type="STREAM", order="none", token="o")
    )
    harness.coordinator.order_changed()
    harness.register("bob", order="strict")

    assert "none" == harness.subscription.order
    assert {0, 1, 2} == set(harness.holders())
