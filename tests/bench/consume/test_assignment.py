"""The assignment benchmark: its workloads and its minimum of moves."""

from itertools import product

import pytest

from bench.consume.assignment import fewest_moves, moved, workloads
from coordinator.balancing.target import AssignmentInput, assign


@pytest.mark.parametrize("held", [h for h in product(range(4), repeat=3) if sum(h) <= 6])
@pytest.mark.parametrize("free", [0, 1, 2])
def test_the_minimum_of_moves_is_that_of_the_best_balanced_assignment(held: tuple[int, ...], free: int) -> None:
    names = ["ada", "bob", "cyd"]
    holders = dict(enumerate(name for name, count in zip(names, held, strict=True) for _ in range(count)))
    segments = len(holders) + free
    best = min(
        sum(1 for segment, name in holders.items() if owners[segment] != name)
        for owners in product(names, repeat=segments)
        if max(map(owners.count, names)) - min(map(owners.count, names)) <= 1
    )

    assert best == fewest_moves(held, segments)


def test_every_workload_starts_balanced_and_contains_the_change_in_its_name() -> None:
    found = workloads(10)

    assert {} == found["full"].holders
    assert 0 == moved(found["stable"], found["stable"].solve())
    assert ["new"] == sorted(set(found["join_one"].consumers) - set(found["stable"].consumers))
    assert 1 == len(found["stable"].consumers) - len(found["leave_one"].consumers)
    assert {0, 100, 101} == set(found["split_one"].segments) ^ set(found["stable"].segments)
    assert [found["stable"].holders[0]] == found["split_one"].preferred_owners[100]
    assert 11 == len(found["join_many"].consumers)
    assert {10} == {len(keys) for keys in found["stable"].held.values()}


def test_segments_of_a_consumer_that_left_do_not_count_as_moves() -> None:
    leave = workloads(3)["leave_one"]

    assert 0 == moved(leave, leave.solve())
    shuffled = assign(AssignmentInput(leave.segments, leave.consumers, {}))
    assert moved(leave, shuffled) > 0
