"""The benchmark of a hostile client: what it counts as a fault, and what it computes."""

import pytest

from bench.cluster.hostile_client import BENCHMARK, compared
from bench.harness.honest_load import Faults, by_key, faults

SENT = {b"a": [0, 1, 2, 3], b"b": [0, 1]}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({b"a": [0, 1, 2, 3], b"b": [0, 1]}, Faults()),
        ({b"a": [0, 1, 3], b"b": [0, 1]}, Faults(lost=1)),
        ({b"a": [0, 1, 2, 3]}, Faults(lost=2)),
        ({b"a": [0, 1, 1, 2, 0, 3], b"b": [0, 1]}, Faults(repeated=2)),
        ({b"a": [0, 2, 1, 3], b"b": [0, 1]}, Faults(reordered=1)),
        ({b"a": [0, 1, 2, 3], b"b": [0, 1], b"c": [7, 8]}, Faults(forged=2)),
    ],
    ids=["none", "one lost", "a key lost", "repeated", "reordered", "forged"],
)
def test_faults_are_counted(seen: dict[bytes, list[int]], expected: Faults) -> None:
    assert expected == faults(SENT, seen)


def test_a_forged_value_under_an_honest_key_is_a_fault() -> None:
    seen = by_key([(b"b", b"forged"), (b"b", b"0 x"), (b"b", b"1 x")])

    assert Faults(forged=1) == faults({b"b": [0, 1]}, seen)


def test_the_value_is_the_ratio_of_99th_percentiles() -> None:
    measured = compared(
        {"disturbed": [0.01] * 98 + [0.06] * 2, "undisturbed": [0.01] * 98 + [0.04] * 2}, Faults(), acts=7
    )

    assert measured.value == pytest.approx(1.5)
    assert (measured.parts["p50_disturbed_ms"], measured.parts["acts"]) == (10.0, 7)
    assert BENCHMARK.meets_all_goals(measured)


@pytest.mark.parametrize("fault", ["lost", "repeated", "reordered", "forged"])
def test_one_fault_misses_the_goal(fault: str) -> None:
    measured = compared({"disturbed": [0.01], "undisturbed": [0.01]}, Faults(**{fault: 1}))

    assert [fault] == BENCHMARK.missed_parts(measured)
