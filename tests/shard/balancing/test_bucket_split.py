"""The division of segments into bucket ranges, rule by rule, then with random joins and leaves."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import KEY_BUCKETS, BucketRange, SegmentSlice, buckets_of, segment_of
from shard.balancing.balance import assign
from shard.balancing.bucket_split import Pool, pools


def names(count: int, prefix: str = "c") -> list[str]:
    return [f"{prefix}{number:03d}" for number in range(count)]


def halves(segment: int) -> list[BucketRange]:
    return [BucketRange(segment, 0, 8), BucketRange(segment, 8, 16)]


def quarters(segment: int) -> list[BucketRange]:
    return [BucketRange(segment, first, first + 4) for first in range(0, 16, 4)]


def assigned(slices: list[SegmentSlice], consumers: int) -> dict[SegmentSlice, str]:
    return dict(zip(slices, names(consumers), strict=False))


TWO = {"a": True, "b": True}
OLD = {"new1": True, "new2": True, "old": False}
POOLS = {
    "rule 1: CHECKPOINT is never shared": ("CHECKPOINT", [0], TWO, {}, [Pool([0], TWO)]),
    "rule 1: nor is an unknown type": (None, [0], TWO, {}, [Pool([0], TWO)]),
    "rule 1: STREAM is shared": ("STREAM", [0], TWO, {}, [Pool(halves(0), ["a", "b"])]),
    "rule 1: QUEUE is shared": ("QUEUE", [0], TWO, {}, [Pool(halves(0), ["a", "b"])]),
    "rule 2: with a consumer for each segment, all get whole ones from one pool": (
        *("STREAM", [0, 1, 2], OLD, {}),
        [Pool([0, 1, 2], OLD)],
    ),
    "rule 2: without segments there is nothing to share": ("QUEUE", [], TWO, {}, [Pool([], TWO)]),
    "rule 6: a consumer that cannot share gets a whole segment": (
        *("STREAM", [0, 1], {"new1": True, "new2": True, "new3": True, "old": False}, {0: "new1", 1: "old"}),
        [Pool([*quarters(0)[:2], BucketRange(0, 8, 16)], ["new1", "new2", "new3"]), Pool([1], ["old"])],
    ),
    "rule 6: consumers that can share come first": (
        *("STREAM", [0], OLD, {0: "old"}),
        [Pool(halves(0), ["new1", "new2"])],
    ),
    "rule 6: a consumer that cannot share gets a segment that is still whole": (
        *("STREAM", [0, 1], OLD, {halves(0)[0]: "new1", halves(0)[1]: "new2"}),
        [Pool(halves(0), ["new1", "new2"]), Pool([1], ["old"])],
    ),
    "rule 6: one consumer that can share is not enough": (
        *("STREAM", [0], {"a": True, "b": False, "c": False}, {}),
        [Pool([0], {"a": True, "b": False, "c": False})],
    ),
}


@pytest.mark.parametrize(("kind", "segments", "consumers", "holders", "expected"), POOLS.values(), ids=POOLS)
def test_which_consumers_share_which_segments(kind, segments, consumers, holders, expected) -> None:
    found = pools(kind, segments, consumers, holders)

    assert expected == [Pool(sorted(each.slices, key=segment_of), each.consumers) for each in found]


DIVISIONS = {
    "rule 2: no segment is shared while there are enough": (3, 3, {}, [0, 1, 2]),
    "rule 2: nor if it was shared before": (3, 3, assigned([*halves(0), 1], 3), [0, 1, 2]),
    "rule 3: as many slices as consumers": (3, 4, {}, [*halves(0), 1, 2]),
    "rule 3: up to the number of buckets": (1, 40, {}, [BucketRange(0, n, n + 1) for n in range(16)]),
    "rule 4: the largest slice is halved": (2, 4, dict.fromkeys([*halves(0), 1], "x"), [*halves(0), *halves(1)]),
    "rule 4: the held one stays whole": (2, 3, {0: "c000"}, [0, *halves(1)]),
    "rule 4: the halves of a free slice are free": (
        *(1, 5, assigned(quarters(0)[:2], 2)),
        [*quarters(0)[:2], BucketRange(0, 8, 10), BucketRange(0, 10, 12), quarters(0)[3]],
    ),
    "rule 4: the first half of a half is held": (1, 3, {quarters(0)[2]: "x"}, [halves(0)[0], *quarters(0)[2:]]),
    "rule 4: the second half of a half is held": (1, 3, {quarters(0)[3]: "x"}, [halves(0)[0], *quarters(0)[2:]]),
    "rule 4: a held eighth is joined for even sizes, and one of the halves is halved in return": (
        *(2, 6, {0: "c000", BucketRange(1, 10, 12): "c001"}),
        [*quarters(0)[:2], halves(0)[1], halves(1)[0], *quarters(1)[2:]],
    ),
    "rule 5: the smallest pair is joined first": (
        *(2, 4, assigned([*quarters(0)[:2], BucketRange(0, 8, 16), *halves(1)], 5)),
        [*halves(0), *halves(1)],
    ),
    "rule 5: even slices stay divided": (1, 4, assigned(quarters(0), 4), quarters(0)),
    "rule 5: while there are fewer than two for each consumer": (1, 3, assigned(quarters(0), 4), quarters(0)),
    "rule 5: two for each consumer are joined": (1, 2, assigned(quarters(0), 4), halves(0)),
    "rule 5: a single consumer gets all": (1, 1, assigned(quarters(0), 4), [0]),
    "rule 5: a free pair is joined before a held one": (
        *(3, 4, assigned([*halves(0), BucketRange(1, 0, 8), 2], 4)),
        [*halves(0), 1, 2],
    ),
}


@pytest.mark.parametrize(("segments", "consumers", "holders", "expected"), DIVISIONS.values(), ids=DIVISIONS)
def test_how_segments_are_divided(segments: int, consumers: int, holders: dict, expected: list) -> None:
    (pool,) = pools("STREAM", list(range(segments)), dict.fromkeys(names(consumers), True), holders)

    assert expected == list(pool.slices)


MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 20)), max_size=12)


class AssignmentModel:
    """Consumers that join and leave, with immediate handovers."""

    def __init__(self, segments: int) -> None:
        self.segments = list(range(segments))
        self.consumers: dict[str, bool] = {}
        self.held: dict[SegmentSlice, str] = {}
        self.joined = 0

    def step(self, joins: bool, pick: int, count: int) -> None:
        for _ in range(count):
            if joins:
                self.consumers[f"c{self.joined:04d}"] = True
                self.joined += 1
            elif self.consumers:
                del self.consumers[sorted(self.consumers)[pick % len(self.consumers)]]
        self.settle()

    def settle(self) -> None:
        holders = {held: name for held, name in self.held.items() if name in self.consumers}
        self.held = {}
        for pool in pools("QUEUE", self.segments, self.consumers, holders):
            self.held |= assign(pool.slices, pool.consumers, holders)


@given(st.integers(1, 6), MOVES)
def test_each_bucket_has_one_owner_and_sizes_stay_even(segments: int, moves: list) -> None:
    model = AssignmentModel(segments)
    for joins, pick, count in moves:
        model.step(joins, pick, count)
        if not model.consumers:
            assert {} == model.held
            continue
        buckets = sorted((segment_of(held), bucket) for held in model.held for bucket in buckets_of(held))
        assert buckets == [(segment, bucket) for segment in range(segments) for bucket in range(KEY_BUCKETS)]
        owned = [list(model.held.values()).count(name) for name in model.consumers]
        assert max(owned) - min(owned) <= 1
        if len(model.consumers) <= segments:
            assert set(range(segments)) == set(model.held)
        else:
            assert min(owned) == 1 or len(model.consumers) > segments * KEY_BUCKETS
            sizes = {len(buckets_of(held)) for held in model.held}
            assert max(sizes) <= 2 * min(sizes)


@given(st.booleans(), st.integers(1, 6), st.integers(2, 60), st.integers(0, 100))
def test_a_join_disturbs_one_holder_and_a_leave_two(joins: bool, segments: int, consumers: int, pick: int) -> None:
    model = AssignmentModel(segments)
    model.step(True, 0, segments + consumers)
    before = dict(model.held)
    model.step(joins, pick, 1)
    moved = [p for p, name in before.items() if name in model.consumers and model.held.get(p) != name]
    assert len(moved) <= (1 if joins else 2)


def test_the_result_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from shard.balancing.bucket_split import pools\n"
        "from headgate.model.layout import BucketRange\n"
        "holders = {BucketRange(0, 0, 4): 'b', BucketRange(0, 4, 8): 'a', BucketRange(0, 8, 16): 'c', 1: 'd', 2: 'e'}\n"
        "for count in (4, 5, 9, 30):\n"
        "    consumers = {f'c{n}': n % 4 > 0 for n in range(count)}\n"
        "    print([(list(map(str, p.slices)), list(p.consumers)) for p in pools('STREAM', [0, 1, 2], consumers, holders)])\n"
    )
    environs = (os.environ | {"PYTHONHASHSEED": seed} for seed in "0123")
    outputs = {subprocess.check_output([sys.executable, "-c", program], env=each, text=True) for each in environs}

    assert 1 == len(outputs)
    assert "[0-3]" in outputs.pop()
