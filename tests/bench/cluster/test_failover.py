"""What the failover benchmark computes from the moments that it observed."""

from __future__ import annotations

import pytest

from bench.cluster import failover
from bench.cluster.failover import BENCHMARK, FAILURES, Failure, Gap, Round, own_share_ms

KILL = Round(ours=Gap(0, 2.0, 2.1), peer=Gap(0, 1.5, 1.52))
"""Our session ended half a second later than that of the contender, and we needed 80 ms more behind it."""
HANDOVER = Round(ours=Gap(0.3, 0.31, 0.35), peer=Gap(0.001, 0.005, 0.021))
"""We continued for 300 ms, and then nothing was done for 50 ms; a contender ends at once."""


def test_the_end_of_a_session_belongs_to_neither_side() -> None:
    later = Round(ours=Gap(0, 3.0, 3.1), peer=Gap(0, 1.0, 1.02))

    assert [80, 80] == [round(own_share_ms("sigkill", [each])) for each in (KILL, later)]


def test_after_sigterm_the_gap_begins_with_the_last_work_and_contains_the_deletion() -> None:
    assert 30 == round(own_share_ms("sigterm", [HANDOVER]))


@pytest.mark.parametrize("failure", ["sigkill", "sigstop", "cut"])
def test_the_median_and_the_longest_of_all_rounds_are_reported(failure: Failure) -> None:
    slow = Round(ours=Gap(0, 2.0, 2.9), peer=Gap(0, 1.5, 1.52))
    measured = failover.compared({each: [KILL, KILL, slow] for each in FAILURES})

    assert (80, 880) == (
        round(measured.parts[f"{failure}_own_share_ms"]),
        round(measured.parts[f"{failure}_longest_own_share_ms"]),
    )
    assert (2100, 1520) == (measured.parts[f"{failure}_gap_ms"], measured.parts[f"{failure}_contender_gap_ms"])


def test_the_value_compares_with_a_contender_whose_session_ended_when_ours_did() -> None:
    measured = failover.compared({each: [KILL] for each in FAILURES})

    assert 2.1 / 2.02 == pytest.approx(measured.value)


def test_the_goals_are_missed_by_a_slow_handover_alone() -> None:
    slow = Round(ours=Gap(0.3, 0.31, 0.5), peer=Gap(0.001, 0.005, 0.021))
    fast = failover.compared({"sigkill": [KILL], "sigstop": [KILL], "cut": [KILL], "sigterm": [HANDOVER]})
    one_slow = failover.compared({"sigkill": [KILL], "sigstop": [KILL], "cut": [KILL], "sigterm": [slow]})

    assert BENCHMARK.meets_all_goals(fast)
    assert ["sigterm_own_share_ms"] == BENCHMARK.missed_parts(one_slow)


def test_the_longest_gap_may_begin_after_the_failure() -> None:
    assert (10, 60) == failover.longest_gap(10, [1, 5, 60, 70])
    assert (30, 90) == failover.longest_gap(10, [5, 20, 30, 90, 95])
