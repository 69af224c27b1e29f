"""Plans match the real changes, and planning changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.layout import SegmentSlice, segment_of, slice_of
from headgate.protocol.requests import PlanChanges
from headgate.views.explanations import Plan, ProposedMove
from shard.reporting.plan import plan_changes
from shard.steps import complete
from tests.coordinator.conftest import Lead
from tests.support.worlds.command_shard import imported_topic
from tests.support.worlds.subscription_environment import CoordinatorHarness


def asked(**changes) -> PlanChanges:
    return PlanChanges(topic="orders", subscription="billing", **changes)


def planned(harness: CoordinatorHarness, **changes) -> Plan:
    before = (len(harness.entries), harness.topic.layout, dict(harness.subscription.holdings))
    plan = complete(plan_changes(harness.subscription, harness.topic, asked(**changes)))
    assert before == (len(harness.entries), harness.topic.layout, dict(harness.subscription.holdings))
    return plan


async def settle(harness: CoordinatorHarness) -> None:
    """Let all consumers confirm their revocations."""
    for _ in range(50):
        if harness.coordinator.reconciler.handovers_complete:
            return
        harness.confirm_all()
    raise AssertionError("handovers do not complete")


def after(holders: dict[SegmentSlice, str], moves: list[ProposedMove]) -> dict[SegmentSlice, str]:
    found = dict(holders)
    for move in moves:
        held = slice_of(move.segment, move.first_bucket, move.end_bucket)
        assert found.pop(held, None) == move.before
        if move.after is not None:
            found[held] = move.after
    return dict(sorted(found.items()))


@given(
    segments=st.integers(1, 8),
    names=st.lists(st.sampled_from(["ada", "bob", "cyd", "dan", "eve"]), min_size=1, max_size=4, unique=True),
    splits=st.sets(st.integers(0, 7), max_size=3),
    joins=st.booleans(),
    leaves=st.booleans(),
    can_share=st.booleans(),
    records=st.integers(0, 1),
)
async def test_a_plan_matches_the_real_changes(segments, names, splits, joins, leaves, can_share, records):
    harness = CoordinatorHarness(segments=segments)
    for name in names:
        harness.register(name, supports_bucket_ranges=can_share)
        await settle(harness)
    for segment in range(segments if records else 0):
        harness.store(segment, records)
    splits = sorted(s for s in splits if s < segments)
    changes: dict = {"splits": splits}
    if joins:
        changes["add_consumers"] = ["zoe"]
    if leaves:
        changes["remove_consumers"] = [names[0]]
    plan = planned(harness, **changes)
    after_rebalance = after(harness.holders(), plan.after_rebalance)
    drained = after(after_rebalance, plan.after_drain)

    for segment in splits:
        harness.split(segment)
    if joins:
        harness.register("zoe", supports_bucket_ranges=True)
    if leaves:
        harness.leave(names[0])
    await settle(harness)

    counts = {each.consumer: each.after_rebalance for each in plan.consumers if each.after_rebalance is not None}
    assert sorted(counts.values()) == sorted(
        list(harness.holders().values()).count(name) for name in harness.subscription.consumers
    )
    # Several changes may break ties differently when they happen one by one.
    if len(splits) + joins + leaves == 1:
        assert after_rebalance == harness.holders()
        for held, holding in list(harness.subscription.holdings.items()):
            harness.acknowledge(holding.consumer, held, harness.topic.tails[segment_of(held)].next_offset)
        await harness.run_with_heartbeats(4)
        await settle(harness)
        assert drained == harness.holders()


async def test_a_plan_balances_by_load_if_the_subscription_does(lead: Lead) -> None:
    """One of six segments is as heavy as all others: by count, the new consumer would get two."""
    harness = lead(segments=6, type="QUEUE")
    harness.register("ada", balance="load")
    harness.propose(
        e.SegmentWeightsSet(topic_id=1, subscription_id=2, weights={0: 500} | dict.fromkeys(range(1, 6), 100))
    )
    plan = planned(harness, add_consumers=["bob"])

    assert [0] == [move.segment for move in plan.after_rebalance]
    harness.register("bob")
    await settle(harness)
    assert {0: "bob"} | dict.fromkeys(range(1, 6), "ada") == harness.holders()


async def test_a_segment_that_is_being_revoked_moves_from_its_holder(lead: Lead) -> None:
    """After all handovers, and nothing has been confirmed yet."""
    harness = lead("ada", segments=2)
    harness.register("bob")
    assert set(harness.holders().values()) == {"ada"}

    assert [(move.before, move.after) for move in planned(harness).after_rebalance] == [("ada", "bob")]


async def test_a_revoked_segment_counts_as_free_and_its_holder_keeps_the_others(lead: Lead) -> None:
    harness = lead("ada", segments=2)
    generation = harness.subscription.holdings[0].generation
    harness.propose(e.SegmentRevoked(topic_id=1, subscription_id=2, segment=0, generation=generation))

    moves = planned(harness, add_consumers=["bob"]).after_rebalance
    assert [(0, "ada", "bob")] == [(move.segment, move.before, move.after) for move in moves]


async def test_a_segment_that_a_plan_creates_and_splits_is_empty_and_blocks_nothing(lead: Lead) -> None:
    plan = planned(lead("ada", records=5), splits=[0, 1])

    assert {1: (), 2: (0,), 3: (0,), 4: (0,)} == {each.segment: each.blocked_by for each in plan.created}


async def test_a_planned_split_names_the_created_segments_and_their_blockers(lead: Lead) -> None:
    harness = lead("ada", "bob", records=5)

    plan = planned(harness, splits=[0])

    assert [
        (each.segment, each.first_hash, each.last_hash, each.parents, each.blocked_by) for each in plan.created
    ] == [(1, 0, 0x7FFF, (0,), (0,)), (2, 0x8000, 0xFFFF, (0,), (0,))]
    assert plan.after_rebalance == ()
    assert {(move.segment, move.after) for move in plan.after_drain} == {(0, None), (1, "ada"), (2, "bob")}
    assert [(load.consumer, load.before, load.after_rebalance, load.after_drain) for load in plan.consumers] == [
        ("ada", 1, 1, 1),
        ("bob", 0, 0, 1),
    ]


@pytest.mark.parametrize("changes", [{"splits": [0]}, {"merges": [(0, 1)]}])
async def test_an_external_topic_cannot_be_split_or_merged(lead: Lead, changes) -> None:
    topic = imported_topic(e.ImportedSegment(segment=0, label="a"), e.ImportedSegment(segment=1, label="b"))

    with pytest.raises(LayoutError, match="only its source splits and merges"):
        complete(plan_changes(lead("ada").subscription, topic, asked(**changes)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"splits": [9]}, "9"),
        ({"merges": [(0, 2)]}, "not neighbors"),
        ({"add_consumers": ["ada"]}, "already registered; consumers: ada"),
        ({"remove_consumers": ["zoe"]}, "no consumer 'zoe'; consumers: ada"),
    ],
    ids=["unknown segment", "not neighbors", "registered consumer", "unknown consumer"],
)
async def test_an_impossible_change_is_rejected_with_the_reason(lead: Lead, changes, reason) -> None:
    harness = lead("ada", segments=4)

    with pytest.raises(LayoutError, match=reason):
        planned(harness, **changes)
