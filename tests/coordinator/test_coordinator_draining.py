"""One subscription on its leader: blocked children, polling, seeks, types and order."""

import asyncio

import pytest
from structlog.testing import capture_logs

from headgate.model import entries as e
from metrics.events import DrainPollCompleted, SegmentsDrained
from shard.state.subscription import Subscription
from shard.subscriptions.two_witnesses import DrainClaim
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness


@pytest.fixture
def harness(after_split: CoordinatorHarness) -> CoordinatorHarness:
    return after_split


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


async def test_nothing_is_polled_without_a_consumer(harness: CoordinatorHarness) -> None:
    harness.leave("ada")
    await harness.run(10)
    assert [] == harness.checker.checks


async def test_a_checkpoint_subscription_is_never_polled(lead: Lead) -> None:
    harness = lead("ada", type="CHECKPOINT", records=5).split(0)
    harness.coordinator.drain.install(harness.checker)
    await harness.run_with_heartbeats(100)

    assert [] == harness.checker.checks
    assert {0, 1, 2} == set(harness.holders())


async def test_the_first_consumer_of_an_unknown_type_installs_the_drain_check(lead: Lead) -> None:
    harness = lead("ada", type=None, records=1).split(0)
    harness.acknowledge("ada", 0, 1)
    await harness.run_with_heartbeats(10)
    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_without_a_drain_check_children_stay_blocked_until_one_is_installed(lead: Lead) -> None:
    """A missing drain check must not break order. A second installation is ignored."""
    harness = lead("ada", with_drain_check=False)
    harness.store(0, 1)
    harness.split(0)
    harness.acknowledge("ada", 0, 1)
    await harness.run_with_heartbeats(1000)
    assert ({0: "ada"}, False) == (harness.holders(), harness.coordinator.drain.poller.running)

    checks = []

    async def never(subscription: Subscription, segments: frozenset[int]) -> dict[int, DrainClaim]:
        checks.append(segments)
        return {}

    harness.coordinator.drain.install(None)
    harness.coordinator.drain.install(harness.checker)
    harness.coordinator.drain.install(never)
    await harness.run(0.1)
    assert {1: "ada", 2: "ada"} == harness.holders()
    assert [] == checks


async def test_polls_back_off_and_each_progress_event_resets_the_backoff(harness: CoordinatorHarness) -> None:
    events = {
        "register": lambda: harness.register("bob"),
        "reconnect": lambda: harness.register("ada"),
        "heartbeat of a disconnected consumer": lambda: (
            harness.disconnect("anonymous/client-bob"),
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


async def test_a_result_for_a_segment_that_is_not_sealed_is_ignored(harness: CoordinatorHarness) -> None:
    """The coordinator does not rely on the poller for this."""
    harness.coordinator.drain.record({1: DrainClaim(0), 2: DrainClaim(0), 77: DrainClaim(0)})

    assert [] == harness.proposed(e.SegmentsDrained)


async def test_children_that_a_heartbeat_has_found_blocked_open_with_their_empty_ancestor(lead: Lead) -> None:
    harness = lead("ada")
    harness.propose(e.SegmentSplit(topic_id=1, segment=0, end_offset=0, token="t"))
    harness.coordinator.reconciler.layout_changed()
    assert 2 == harness.heartbeat("ada").blocked
    harness.coordinator.adapt("layout changed")

    assert {1, 2} == set(harness.holders())


async def test_a_claim_that_the_leader_contradicts_opens_nothing_and_is_reported_once(harness: CoordinatorHarness):
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
    assert {0} == harness.coordinator.drain.contradicted.keys()
    harness.seek({0: 1})
    assert {} == harness.coordinator.drain.contradicted, "it was about the former positions"

    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_after_close_nothing_is_polled_or_proposed(harness: CoordinatorHarness) -> None:
    """Also before its end is awaited: the subscription may be gone."""
    harness.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.01)
    assert 1 == len(harness.checker.checks)
    before = len(harness.entries)
    closing = harness.coordinator.close()
    await asyncio.sleep(1000)
    await closing

    assert 1 == len(harness.checker.checks)
    assert before == len(harness.entries)


async def test_a_check_result_from_before_a_seek_is_ignored(harness: CoordinatorHarness) -> None:
    """The check starts at the old positions and ends after the seek."""
    harness.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.04)
    assert 1 == len(harness.checker.checks)
    harness.subscription.progress.positions[0] = 5  # the check sees this position in any case
    harness.seek({1: 0})
    await asyncio.sleep(0.02)
    assert [] == harness.proposed(e.SegmentsDrained)

    await harness.run(0.2)
    assert [1] == [entry.seek_generation for entry in harness.proposed(e.SegmentsDrained)]


async def test_order_can_be_relaxed_and_restored_while_consumers_run(harness: CoordinatorHarness) -> None:
    harness.register("bob", order="none")
    assert {0, 1, 2} == set(harness.holders())
    harness.register("cyd")
    assert "none" == harness.subscription.order
    assert not harness.coordinator.reconciler.handovers_complete
    strict = {"subscription_type": e.SubscriptionType.STREAM, "order": "strict"}
    harness.propose(e.SubscriptionConfigured(topic_id=1, subscription_id=2, **strict))
    harness.coordinator.order_changed()  # A later turn adapts.
    harness.confirm_all()
    assert harness.coordinator.reconciler.gate.blocked

    harness.register("cyd", incarnation=2, order="none")
    harness.register("dan", order="strict")
    held = {s for s, holding in harness.subscription.holdings.items() if holding.revoked_at_ms is None}
    assert held <= {0}
    assert {1: (0,), 2: (0,)} == dict(harness.coordinator.reconciler.gate.blocked)


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
    await harness.run_with_heartbeats(100)
    assert {0} == set(harness.holders())
