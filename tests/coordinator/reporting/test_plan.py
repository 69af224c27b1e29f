"""Plans: what is planned is what happens, and nothing happens by planning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.reporting.plan import what_if
from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.bucket_ranges import Place, place_of
from headgate.protocol import messages as m
from tests.support.subscription_environment import World

pytestmark = pytest.mark.looptime


def asked(**changes) -> m.PlanChanges:
    return m.PlanChanges(request_id=1, client_id="c", topic="orders", subscription="billing", **changes)


def planned(world: World, **changes) -> m.ChangePlan:
    before = (len(world.entries), world.topic.layout, dict(world.subscription.holdings))
    plan = what_if(world.subscription, world.topic, asked(**changes))
    assert before == (len(world.entries), world.topic.layout, dict(world.subscription.holdings))
    return plan


async def settle(world: World) -> None:
    """Let every consumer confirm what it was told to finish."""
    for _ in range(50):
        revoked = [(s, h) for s, h in world.subscription.holdings.items() if h.revoked_at_ms is not None]
        if not revoked:
            return
        for segment, holding in revoked:
            world.confirm(holding.consumer, segment)
    raise AssertionError("does not settle")


def after(holders: dict[Place, str], moves: list[m.PlannedMove]) -> dict[Place, str]:
    found = dict(holders)
    for move in moves:
        place = place_of(move.segment, move.first_bucket, move.end_bucket)
        assert found.pop(place, None) == move.before
        if move.after is not None:
            found[place] = move.after
    return dict(sorted(found.items()))


@given(
    segments=st.integers(1, 8),
    names=st.lists(st.sampled_from(["ada", "bob", "cyd", "dan", "eve"]), min_size=1, max_size=4, unique=True),
    splits=st.sets(st.integers(0, 7), max_size=3),
    joins=st.booleans(),
    leaves=st.booleans(),
    shares=st.booleans(),
)
@settings(max_examples=60, deadline=None)
async def test_what_is_planned_is_what_happens(segments, names, splits, joins, leaves, shares):
    world = World(segments=segments)
    world.lead(world.check)
    for name in names:
        world.register(name, shares=shares)
        await settle(world)
    splits = sorted(s for s in splits if s < segments)
    changes: dict = {"splits": splits}
    if joins:
        changes["add_consumers"] = ["zoe"]
    if leaves:
        changes["remove_consumers"] = [names[0]]
    plan = planned(world, **changes)
    at_once = after(world.holders(), plan.at_once)
    drained = after(at_once, plan.when_drained)

    for segment in splits:
        world.split(segment)
    if joins:
        world.register("zoe", shares=True)
    if leaves:
        world.leave(names[0])
    await settle(world)

    counts = {each.consumer: each.at_once for each in plan.consumers if each.at_once is not None}
    assert sorted(counts.values()) == sorted(
        list(world.holders().values()).count(name) for name in world.subscription.consumers
    )
    # One change at a time may break ties otherwise than all at once; a single one may not.
    if len(splits) + joins + leaves == 1:
        assert at_once == world.holders()
        await world.live(4)
        await settle(world)
        assert drained == world.holders()
    await world.coordinator.close()


async def test_a_plan_for_what_is_balanced_by_load_is_made_by_load():
    """Six segments, one as heavy as all others together: by count, the joiner would get two."""
    world = World(segments=6, type="QUEUE", order="none")
    world.lead(world.check)
    world.register("ada", balance="load")
    world.propose(e.SegmentsWeighed(topic_id=1, subscription_id=2, weights={0: 500} | dict.fromkeys(range(1, 6), 100)))
    plan = planned(world, add_consumers=["bob"])

    assert [0] == [move.segment for move in plan.at_once]
    world.register("bob")
    await settle(world)
    assert {0: "bob"} | dict.fromkeys(range(1, 6), "ada") == world.holders()
    await world.coordinator.close()


async def test_a_split_says_what_comes_into_being_and_what_it_waits_for():
    world = World(segments=1)
    world.lead(world.check)
    world.register("ada")
    world.register("bob")
    world.store(0, 5)

    plan = planned(world, splits=[0])
    await world.coordinator.close()

    assert [
        (each.segment, each.first_hash, each.last_hash, each.parents, each.blocked_by) for each in plan.created
    ] == [
        (1, 0, 0x7FFF, [0], [0]),
        (2, 0x8000, 0xFFFF, [0], [0]),
    ]
    assert plan.at_once == []
    assert {(move.segment, move.after) for move in plan.when_drained} == {(0, None), (1, "ada"), (2, "bob")}
    assert [(load.consumer, load.before, load.at_once, load.when_drained) for load in plan.consumers] == [
        ("ada", 1, 1, 1),
        ("bob", 0, 0, 1),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"splits": [9]}, "9"),
        ({"merges": [(0, 2)]}, "not neighbours"),
        ({"add_consumers": ["ada"]}, "there already"),
        ({"remove_consumers": ["zoe"]}, "no consumer 'zoe': consumers are ada"),
    ],
    ids=["unknown segment", "strangers", "twice", "nobody"],
)
async def test_an_impossible_change_is_refused_with_the_reason(changes, reason):
    world = World(segments=4)
    world.lead(world.check)
    world.register("ada")

    with pytest.raises(LayoutError, match=reason):
        planned(world, **changes)
    await world.coordinator.close()
