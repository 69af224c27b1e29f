"""A new leader takes up a subscription: what it must not change, and what it must finish."""

from collections.abc import AsyncIterator

import pytest

from coordinator.ports import CheckDrained
from headgate.model import entries as e
from tests.support.subscription_environment import Checker, World, split_world, virtual_time

pytestmark = pytest.mark.looptime


@pytest.fixture
async def parts() -> AsyncIterator[tuple[World, Checker]]:
    with virtual_time():
        world, checker = await split_world()
    yield world, checker
    await world.coordinator.close()


async def pass_on(world: World, check: CheckDrained | None) -> None:
    """The leader changes: all that was not in the ledger is gone."""
    await world.coordinator.close()
    world.pushes.clear()
    world.lead(check)


async def test_a_new_leader_changes_nothing_that_need_not_change(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    world.register("bob")
    world.acknowledge("ada", 0, 5)
    await world.run(0.1)
    before = len(world.entries)
    held = dict(world.subscription.holdings)
    await pass_on(world, checker)
    await world.run(1)

    assert before == len(world.entries)
    assert [] == world.pushes
    answer = world.register("ada")
    assert world.reign == answer.leader_epoch
    assert held == world.subscription.holdings
    assert before == len(world.entries)


async def test_after_a_failover_no_running_child_is_withheld_and_nothing_is_asked(
    parts: tuple[World, Checker],
) -> None:
    """Drained facts are in the ledger."""
    world, checker = parts
    world.acknowledge("ada", 0, 5)
    await world.run(0.1)
    checker.asked.clear()
    await pass_on(world, checker)

    assert [1, 2] == [grant.segment for grant in world.register("ada").grants]
    await world.run(10)
    assert [] == checker.asked


async def test_a_new_leader_asks_at_once_about_ends_that_were_reached_before_it(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    checker.blind = True
    world.acknowledge("ada", 0, 5)
    await world.run(1)
    checker.blind = False
    await pass_on(world, checker)
    await world.run(0.1)

    assert {1: "ada", 2: "ada"} == world.holders()


async def test_connected_consumers_get_one_heartbeat_window_from_a_new_leader(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    await world.run(14)
    await pass_on(world, checker)
    await world.run(14.5)
    assert [] == world.proposed(e.ConsumerDisconnected)
    await world.run(1)

    assert 1 == len(world.proposed(e.ConsumerDisconnected))


async def test_leader_changes_do_not_renew_grace(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    world.coordinator.client_gone("client-ada")
    for _ in range(5):
        await world.run(11)
        await pass_on(world, checker)
    assert {"ada"} == set(world.subscription.consumers)
    await world.run(6)

    assert {} == world.subscription.consumers


async def test_a_revocation_keeps_its_clock_across_leaders() -> None:
    world = World(segments=2)
    world.lead(world.check)
    world.register("ada")
    world.register("bob")
    await world.run(10)
    await pass_on(world, world.check)
    assert not world.coordinator.settled
    for _ in range(3):
        world.heartbeat("ada"), world.heartbeat("bob")
        await world.run(6.5)
    assert {0: "ada"} == world.holders()
    await world.run(1)

    assert {0: "ada", 1: "bob"} == world.holders()
    await world.coordinator.close()


async def test_a_confirmation_to_a_new_leader_passes_the_segment_on() -> None:
    world = World(segments=2)
    world.lead(world.check)
    world.register("ada")
    world.register("bob")
    await pass_on(world, world.check)
    await world.run(0.25)
    world.confirm("ada", 1)

    assert {0: "ada", 1: "bob"} == world.holders()
    await world.coordinator.close()


async def test_a_confirmation_before_the_first_look_of_a_new_leader_is_followed_by_a_grant() -> None:
    world = World(segments=2)
    world.lead(world.check)
    world.register("ada")
    world.register("bob")
    await pass_on(world, world.check)
    world.confirm("ada", 1)
    await world.run(0.25)

    assert {0: "ada", 1: "bob"} == world.holders()
    await world.coordinator.close()


async def test_a_new_leader_finishes_what_the_old_one_left_half_done(parts: tuple[World, Checker]) -> None:
    """The fact is durable, its grants are not: the reign ended between two chunks."""
    world, checker = parts
    await world.coordinator.close()
    world.propose(e.SegmentsDrained(topic_id=1, subscription_id=2, segments=[0], seek_generation=0))
    await pass_on(world, checker)
    await world.run(0.25)

    assert {1: "ada", 2: "ada"} == world.holders()
