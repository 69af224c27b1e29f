"""Whose acknowledgements count, rule by rule."""

import pytest

from headgate.model import entries as e
from tests.support.subscription_environment import World, virtual_time

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world(request: pytest.FixtureRequest):
    """Two consumers and two segments with five records each; the parameter is the subscription's type."""
    kind = getattr(request, "param", "STREAM")
    with virtual_time():
        world = World(segments=2, type=kind, order="strict" if kind == "STREAM" else "none")
        world.lead(world.check)
        world.register("ada")
        world.store(0, 5)
        world.store(1, 5)
    yield world
    await world.coordinator.close()


async def test_an_acknowledgement_of_a_holder_counts(world: World) -> None:
    assert world.acknowledge("ada", 0, 5) is None
    assert 5 == world.subscription.position(0)


@pytest.mark.parametrize("world", ["CHECKPOINT"], indirect=True)
async def test_rule_1_checkpoint_acknowledges_nothing(world: World) -> None:
    assert "CHECKPOINT" in world.acknowledge("ada", 0, 5)


async def test_rule_2_a_stranger_is_refused(world: World) -> None:
    assert "not registered" in world.acknowledge("eve", 0, 5)


async def test_rule_2_another_incarnation_is_refused(world: World) -> None:
    assert "incarnation 1 now" in world.acknowledge("ada", 0, 5, incarnation=0)
    assert "incarnation 1 now" in world.acknowledge("ada", 0, 5, incarnation=2)


async def test_rule_3_an_older_generation_is_refused(world: World) -> None:
    generation = world.subscription.holdings[0].generation
    world.seek({0: 0})

    assert "generation" in world.acknowledge("ada", 0, 5, generation=generation)
    assert 0 == world.subscription.position(0)


async def test_rule_3_another_consumers_segment_is_refused(world: World) -> None:
    world.register("bob")
    world.confirm("ada", 1)

    assert {0: "ada", 1: "bob"} == world.holders()
    assert "held by 'bob'" in world.acknowledge("ada", 1, 5)


async def test_rule_3_a_segment_that_nobody_holds_is_refused(world: World) -> None:
    assert "held by nobody" in world.acknowledge("ada", 7, 5, generation=1)


async def test_rule_3_a_holder_told_to_finish_still_holds(world: World) -> None:
    world.register("bob")
    assert world.subscription.holdings[1].revoked_at_ms is not None

    assert world.acknowledge("ada", 1, 3) is None


async def test_rule_4_an_end_beyond_the_last_record_is_refused(world: World) -> None:
    assert "ends at 5" in world.acknowledge("ada", 0, 6)
    assert 0 == world.subscription.position(0)


@pytest.mark.parametrize("world", ["QUEUE"], indirect=True)
async def test_rule_5_queue_ranges_hold_at_least_one_record(world: World) -> None:
    assert "empty" in world.acknowledge("ada", 0, 3, first_offset=3)
    assert world.acknowledge("ada", 0, 3, first_offset=2) is None
    assert {0: [(2, 3)]} == world.subscription.above


async def test_rule_5_stream_is_cumulative_and_never_goes_back(world: World) -> None:
    assert world.acknowledge("ada", 0, 4, first_offset=3) is None
    assert world.acknowledge("ada", 0, 2) is None

    assert 4 == world.subscription.position(0)
    assert [e.AcknowledgedRange(0, 0, 4)] == world.proposed(e.RecordsAcknowledged)[0].ranges
