"""The schedule of faults: complete rounds, no overlap, and the same result for the same chance."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.schedule import WARM_UP_SECONDS, PlannedFault, plan

KINDS = {"a": 8.0, "b": 3.0, "c": 0.0, "d": 10.0}


def planned(seconds: float, seed: int = 1, rest_seconds: float = 10.0, at_once: int = 1) -> list[PlannedFault]:
    shuffle = random.Random(seed).shuffle
    return plan(KINDS, seconds=seconds, rest_seconds=rest_seconds, shuffle=shuffle, at_once=at_once)


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_every_kind_is_used_before_any_is_used_again(at_once: int) -> None:
    groups = [fault.name.split("+") for fault in planned(600, at_once=at_once)]
    names = [name for group in groups for name in group]

    assert {at_once} == set(map(len, groups))

    assert len(names) > 2 * len(KINDS)
    for begin in range(0, len(names) - len(KINDS) + 1, len(KINDS)):
        assert sorted(names[begin : begin + len(KINDS)]) == ["a", "b", "c", "d"]


@given(seconds=st.floats(0, 2000), seed=st.integers(0, 1000), rest_seconds=st.integers(1, 60))
def test_faults_never_overlap_and_end_with_a_rest_in_time(seconds: float, seed: int, rest_seconds: float) -> None:
    faults = planned(seconds, seed, rest_seconds)

    assert all(b.begins_seconds >= a.begins_seconds + a.seconds + rest_seconds for a, b in pairwise(faults))
    assert all(fault.begins_seconds + fault.seconds + rest_seconds <= seconds for fault in faults[-1:])
    assert all(fault.begins_seconds >= WARM_UP_SECONDS for fault in faults)
