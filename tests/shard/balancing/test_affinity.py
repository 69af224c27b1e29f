"""The preferred owners of free slices, rule by rule."""

import pytest

from headgate.model.layout import BucketRange, Layout, Segment
from shard.balancing.balance import preferred_owners_of

ONE = Layout.initial(1, 0)
SPLIT = ONE.split(0, 5, 0)
"""0 → 1, 2."""
HALVES = {BucketRange(0, 0, 8): "ada", BucketRange(0, 8, 16): "bob"}


@pytest.mark.parametrize(
    ("holders", "layout", "expected"),
    [
        (HALVES, ONE, {BucketRange(0, 8, 12): ["bob", "ada"], 0: ["ada", "bob"]}),
        (HALVES | {3: "cyd"}, SPLIT, {BucketRange(2, 8, 16): ["bob", "ada"], BucketRange(2, 0, 8): ["ada", "bob"]}),
        ({BucketRange(0, 0, 1): "bob", BucketRange(0, 4, 6): "ada"}, ONE, {BucketRange(0, 0, 8): ["bob", "ada"]}),
        ({BucketRange(0, 0, 3): "ada", BucketRange(0, 8, 10): "bob"}, ONE, {BucketRange(0, 4, 8): ["bob", "ada"]}),
        ({BucketRange(0, 0, 4): "eve", BucketRange(0, 6, 8): "bob"}, ONE, {BucketRange(0, 4, 6): ["eve", "bob"]}),
        ({0: "ada"}, SPLIT.split(1, 5, 0).split(3, 5, 0), {5: ["ada"]}),
        ({1: "ada", 2: "bob"}, SPLIT.merge(1, 2, {1: 5, 2: 5}, 0), {3: ["ada", "bob"]}),
        ({0: "cyd", 2: "ada"}, SPLIT.merge(1, 2, {1: 5, 2: 5}, 0), {3: ["ada"]}),
        ({2: "ada"}, Layout(1, 3, {1: Segment(1, 0, 99, 0, parents=(0,)), 2: Segment(2, 100, 0xFFFF, 0)}), {}),
    ],
    ids=[
        "holders of the same buckets come first",
        "holders of the same buckets of the parent come first",
        "of overlapping buckets none is nearer",
        "the nearer one of two neighbors comes first",
        "rule 1: of two equally near holders, that of the lower buckets comes first",
        "rule 2: an ancestor at any depth counts",
        "rule 2: both parents of a merge count",
        "rule 2: a held parent is nearer than the parent of the other one",
        "a parent that is missing from the layout gives no affinity",
    ],
)
def test_the_preferred_owners_of_free_slices(holders: dict, layout: Layout, expected: dict) -> None:
    assert expected == preferred_owners_of(holders, layout, list(expected) or [1])
