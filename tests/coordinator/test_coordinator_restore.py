"""A new leader takes up a subscription: what it must not change, and what it must finish."""

from collections.abc import AsyncIterator

import pytest

from coordinator.ports import DrainCheck
from headgate.model import entries as e
from tests.support.subscription_environment import (
    CoordinatorHarness,
    FakeDrainChecker,
    harness_after_split,
    virtual_time,
)

pytestmark = pytest.mark.looptime


@pytest.fixture
async def parts() -> AsyncIterator[tuple[CoordinatorHarness, FakeDrainChecker]]:
    with virtual_time():
        harness, checker = await harness_after_split()
    yield harness, checker
    await harness.coordinator.close()


async def pass_on(harness: CoordinatorHarness, check: DrainCheck | None) -> None:
    """The leader changes: all that was not in the ledger is gone."""
    await harness.coordinator.close()
    harness.pushes.clear()
    harness.lead(check)


async def test_a_new_leader_changes_nothing_that_need_not_change(
    parts: tuple[CoordinatorHarness, FakeDrainChecker],
) -> None:
    harness, checker = parts
    harness.register("bob")
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    before = len(harness.entries)
    held = dict(harness.subscription.holdings)
    await pass_on(harness, checker)
    await harness.run(1)

    assert before == len(harness.entries)
    assert [] == harness.pushes
    harness.register("ada")
    assert held == harness.subscription.holdings
    assert before == len(harness.entries)


async def test_after_a_failover_no_running_child_is_withheld_and_nothing_is_asked(
    parts: tuple[CoordinatorHarness, FakeDrainChecker],
) -> None:
    """Drained facts are in the ledger."""
    harness, checker = parts
    harness.acknowledge("ada", 0, 5)
    await harness.run(0.1)
    checker.checks.clear()
    await pass_on(harness, checker)

    assert [1, 2] == [grant.segment for grant in harness.register("ada").grants]
    await harness.run(10)
    assert [] == checker.checks


async def test_a_new_leader_asks_at_once_about_ends_that_were_reached_before_it(
    parts: tuple[CoordinatorHarness, FakeDrainChecker],
) -> None:
    harness, checker = parts
    checker.reports_nothing_drained = True
    harness.acknowledge("ada", 0, 5)
    await harness.run(1)
    checker.reports_nothing_drained = False
    await pass_on(harness, checker)
    await harness.run(0.1)

    assert {1: "ada", 2: "ada"} == harness.holders()


async def test_connected_consumers_get_one_heartbeat_window_from_a_new_leader(
    parts: tuple[CoordinatorHarness, FakeDrainChecker],
) -> None:
    harness, checker = parts
    await harness.run(14)
    await pass_on(harness, checker)
    await harness.run(14.5)
    assert [] == harness.proposed(e.ConsumerDisconnected)
    await harness.run(1)

    assert 1 == len(harness.proposed(e.ConsumerDisconnected))


async def test_leader_changes_do_not_renew_grace(parts: tuple[CoordinatorHarness, FakeDrainChecker]) -> None:
    harness, checker = parts
    harness.coordinator.client_disconnected("client-ada")
    for _ in range(5):
        await harness.run(11)
        await pass_on(harness, checker)
    assert {"ada"} == set(harness.subscription.consumers)
    await harness.run(6)

    assert {} == harness.subscription.consumers


async def test_a_revocation_keeps_its_clock_across_leaders() -> None:
    harness = CoordinatorHarness(segments=2)
    harness.lead(harness.check)
    harness.register("ada")
    harness.register("bob")
    await harness.run(10)
    await pass_on(harness, harness.check)
    assert not harness.coordinator.handovers_complete
    for _ in range(3):
        harness.heartbeat("ada"), harness.heartbeat("bob")
        await harness.run(6.5)
    assert {0: "ada"} == harness.holders()
    await harness.run(1)

    assert {0: "ada", 1: "bob"} == harness.holders()
    await harness.coordinator.close()


async def test_a_confirmation_to_a_new_leader_passes_the_segment_on() -> None:
    harness = CoordinatorHarness(segments=2)
    harness.lead(harness.check)
    harness.register("ada")
    harness.register("bob")
    await pass_on(harness, harness.check)
    await harness.run(0.25)
    harness.confirm("ada", 1)

    assert {0: "ada", 1: "bob"} == harness.holders()
    await harness.coordinator.close()


async def test_a_confirmation_before_the_first_look_of_a_new_leader_is_followed_by_a_grant() -> None:
    harness = CoordinatorHarness(segments=2)
    harness.lead(harness.check)
    harness.register("ada")
    harness.register("bob")
    await pass_on(harness, harness.check)
    harness.confirm("ada", 1)
    await harness.run(0.25)

    assert {0: "ada", 1: "bob"} == harness.holders()
    await harness.coordinator.close()


async def test_a_new_leader_finishes_what_the_old_one_left_half_done(
    parts: tuple[CoordinatorHarness, FakeDrainChecker],
) -> None:
    """The fact is durable, its grants are not: the reign ended between two chunks."""
    harness, checker = parts
    await harness.coordinator.close()
    harness.propose(e.SegmentsDrained(topic_id=1, subscription_id=2, segments=[0], seek_generation=0))
    await pass_on(harness, checker)
    await harness.run(0.25)

    assert {1: "ada", 2: "ada"} == harness.holders()
