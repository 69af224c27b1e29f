"""The preferred owners of free slices, rule by rule. Handovers by affinity are in test_coordinator_sharing.py."""

from headgate.model.bucket_ranges import BucketRange
from headgate.model.layout import Layout
from shard.balancing.balance import preferred_owners_of


def test_rule_1_of_two_equally_near_holders_that_of_the_lower_buckets_comes_first() -> None:
    holders = {BucketRange(0, 0, 4): "eve", BucketRange(0, 6, 8): "bob"}
    free = BucketRange(0, 4, 6)

    assert {free: ["eve", "bob"]} == preferred_owners_of(holders, Layout.initial(1, 0), [free])


def test_rule_2_an_ancestor_at_any_depth_counts() -> None:
    """0 → 1, 2 and then 1 → 3, 4 and then 3 → 5, 6."""
    layout = Layout.initial(1, 0).split(0, 5, 0).split(1, 5, 0).split(3, 5, 0)

    assert {5: ["ada"]} == preferred_owners_of({0: "ada"}, layout, [5])


def test_rule_2_a_held_parent_is_nearer_than_the_parent_of_the_other_one() -> None:
    """0 → 1, 2, which are merged to 3."""
    layout = Layout.initial(1, 0).split(0, 5, 0).merge(1, 2, {1: 5, 2: 5}, 0)

    assert {3: ["ada"]} == preferred_owners_of({0: "cyd", 2: "ada"}, layout, [3])
