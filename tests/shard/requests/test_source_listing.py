"""Listings of a source, segment by segment and as a graph: what is accepted, and what is refused for which reason."""

from typing import Any

import pytest

from headgate.protocol.requests import SegmentImport
from tests.shard.requests.test_topic_import import B_SEALED, C_SEALED, A, B, C, Shard, ids, seg


def test_a_segment_may_have_a_single_hash() -> None:
    shard = Shard()
    shard.imported(seg("one", 0, 0), seg("rest", 1, 15))

    assert {"one": 0, "rest": 1} == ids(shard)


INVALID_LISTINGS = {
    "listed twice": ([A, A, B, C], {}, "'a' is listed twice"),
    "a parent twice": ([A, seg("b", 0, 7, "aa"), C], {}, "'b' names a parent twice"),
    "two parents that are nowhere": ([A, B, seg("c", 8, 15, "xy")], {}, "'c' has the parent 'x', which is not listed"),
    "a parent with a space": ([A, B, seg("c", 8, 15, " ")], {}, "'c' has the parent ' ': give printable ASCII"),
    "its own parent": ([seg("a", sealed=True, parents="a"), B, C], {}, "in a cycle, or descend from one: a, b, c"),
    "a circle": (
        [seg("a", sealed=True, parents="d"), B_SEALED, C_SEALED, seg("d", sealed=True, parents="bc"), seg("e", 0, 15)],
        {},
        "in a cycle, or descend from one: a, b, c, d",
    ),
    "an end where positions are opaque": ([seg("a", sealed=True, end_offset=5), B, C], {}, "'a' has an end_offset"),
    "no end where offsets count": ([A, B, C], {"positions": "offsets"}, "'a' is sealed and has no end_offset"),
    "no hashes": ([A, B, seg("c", parents="a", hashes=None)], {}, "'c' has no hashes"),
    "hashes of a source without": ([A, B, C], {"hash_bits": 0}, "'a' has hashes, but the listing says hash_bits = 0"),
    "an empty range": ([A, seg("b", 7, 6, "a"), C], {}, "'b' has hashes 7 to 6"),
    "a hash beyond the bits": ([A, B, seg("c", 8, 16, "a")], {}, "'c' has hashes 8 to 16: give first ≤ last < 2^4"),
    "an active parent": ([seg("a"), B, C], {}, "'a' is active, but has the child 'b'"),
    "hashes that no parent had": (
        [seg("x", 0, 7, sealed=True), seg("y", 8, 15), seg("z", 0, 8, "x")],
        {},
        "'z' (0 to 8) has hash 8, which no parent had",
    ),
    "hashes between two parents": (
        [seg("x", 0, 3, sealed=True), seg("y", 8, 15, sealed=True), seg("w", 4, 7, sealed=True), seg("z", 0, 15, "xy")],
        {},
        "'z' (0 to 15) has hash 4, which no parent had",
    ),
    "a parent without a common hash": (
        [seg("x", 0, 7, sealed=True), seg("y", 8, 15, sealed=True), seg("z", 0, 7, "xy"), seg("w", 8, 15, "y")],
        {},
        "'z' (0 to 7) shares no hash with a parent (8 to 15)",
    ),
    "a parent below": (
        [seg("x", 0, 7, sealed=True), seg("y", 8, 15, sealed=True), seg("z", 0, 7, "x"), seg("w", 8, 15, "xy")],
        {},
        "'w' (8 to 15) shares no hash with a parent (0 to 7)",
    ),
    "a gap at the start": ([A, seg("b", 1, 7, "a"), C], {}, "hash 0 has no active segment; the next one is 'b'"),
    "a gap in the middle": ([A, seg("b", 0, 6, "a"), C], {}, "hash 7 has no active segment; the next one is 'c'"),
    "a gap at the end": ([A, B, seg("c", 8, 14, "a")], {}, "hash 15 has no active segment; the hashes end at 2^4 - 1"),
    "an overlaps": ([A, B, seg("c", 7, 15, "a")], {}, "'b' and 'c' are both active and share hash 7"),
    "nothing active": ([A], {}, "hash 0 has no active segment"),
}


@pytest.mark.parametrize(("segments", "fields", "reason"), INVALID_LISTINGS.values(), ids=INVALID_LISTINGS.keys())
def test_an_invalid_listing_is_refused_and_creates_nothing(
    segments: list[SegmentImport], fields: dict[str, Any], reason: str
) -> None:
    assert reason in Shard().rejected(*segments, **fields)


def test_ten_segments_of_a_cycle_are_named() -> None:
    names = "abcdefghijkl"
    circle = [seg(name, sealed=True, parents=names[number - 1]) for number, name in enumerate(names)]

    assert (
        Shard()
        .rejected(*circle)
        .endswith("in a cycle, or descend from one: a, b, c, d, e, f, g, h, i, j, … and 2 more")
    )


@pytest.mark.parametrize("boundary", [7, 9], ids=["of the left parent", "of the right parent"])
def test_one_common_hash_with_a_parent_is_enough(boundary: int) -> None:
    parents = [seg("x", 0, 7, sealed=True), seg("y", 8, 15, sealed=True)]
    left, right = ("x", "xy") if boundary == 7 else ("xy", "y")
    shard = Shard()
    shard.imported(*parents, seg("z", 0, boundary - 1, left), seg("w", boundary, 15, right))

    assert [0, 1, 2, 3] == sorted(shard.state.topics["orders"].layout.segments)


def test_a_child_comes_after_all_its_parents_which_may_share_hashes() -> None:
    shard = Shard()
    shard.imported(A, B_SEALED, C_SEALED, seg("d", 4, 7, "b", sealed=True), seg("e", 0, 15, "ad"))

    assert {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4} == ids(shard)
