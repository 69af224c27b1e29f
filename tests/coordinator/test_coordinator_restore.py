"""A new leader of a subscription: what it keeps, and what it completes."""

from dataclasses import replace

import pytest

from headgate.model import entries as e
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import SETTINGS, CoordinatorHarness


@pytest.fixture
def harness(after_split: CoordinatorHarness) -> CoordinatorHarness:
    return after_split


async def test_a_new_leader_keeps_grants_and_sends_nothing_unasked(harness: CoordinatorHarness) -> None:
    harness.register("bob")
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    before = len(harness.entries)
    held = dict(harness.subscription.holdings)
    await harness.change_leader()
    await harness.run(1)

    assert before == len(harness.entries)
    assert [] == harness.pushes
    assert [1] == [grant.segment for grant in harness.register("ada").grants]
    assert held == harness.subscription.holdings
    assert before == len(harness.entries)


async def test_a_new_leader_checks_acknowledged_sealed_segments_at_once(harness: CoordinatorHarness) -> None:
    harness.checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    await harness.run(1)
    harness.checker.reports_nothing_drained = False
    await harness.change_leader()
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_connected_consumers_get_one_heartbeat_window_from_a_new_leader(harness: CoordinatorHarness) -> None:
    await harness.run(14)
    await harness.change_leader()
    await harness.run(14.5)
    assert [] == harness.proposed(e.ConsumerDisconnected)
    await harness.run(1)

    assert 1 == len(harness.proposed(e.ConsumerDisconnected))


@pytest.mark.parametrize(("revoke_seconds", "fenced_after"), [(1, 15), (30, 30), (90, 90)])
def test_a_revocation_ends_no_earlier_than_the_lease_of_the_holder(revoke_seconds: float, fenced_after: float) -> None:
    given = replace(SETTINGS, grace_seconds=60, revoke_timeout_seconds=revoke_seconds, heartbeat_interval_seconds=5)
    assert fenced_after == given.fence_seconds >= given.lease_seconds


async def test_a_leader_change_does_not_extend_the_grace_period(harness: CoordinatorHarness) -> None:
    harness.disconnect("anonymous/client-ada")
    await harness.run(25)
    await harness.change_leader()
    await harness.run(34)
    assert {"ada"} == set(harness.subscription.consumers)
    await harness.run(2)

    assert {} == harness.subscription.consumers


async def test_a_clock_that_is_ahead_ends_neither_grace_period_nor_revocation_before_the_lease(lead: Lead) -> None:
    """The consumers may be alive: they stop when their leases end, by their own clocks."""
    harness = lead("ada", "bob", "cyd", segments=2)
    harness.disconnect("anonymous/client-cyd")
    await harness.run(10)
    await harness.change_leader()
    assert not harness.coordinator.reconciler.handovers_complete
    harness.clock_ahead_ms = 3_600_000
    for _ in range(4):
        harness.heartbeat("ada"), harness.heartbeat("bob")
        await harness.run(7)
    assert ({"ada", "bob", "cyd"}, {0: "ada"}) == (set(harness.subscription.consumers), harness.holders())
    await harness.run(3)

    assert ({"ada", "bob"}, {0: "ada", 1: "bob"}) == (set(harness.subscription.consumers), harness.holders())
