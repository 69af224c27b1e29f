"""The benchmark of stalls: every kind of request has a case, and the turns of the loop are measured."""

import asyncio
import time

import pytest

from bench.harness.one_leader import Stall, TurnClock, run_timed
from bench.harness.worst_cases import CASES, limit_of
from bench.loop_stall import check_cases, summarized
from headgate.protocol import messages as m


def test_every_kind_of_request_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    check_cases()
    monkeypatch.delitem(CASES, m.PruneTopic)

    with pytest.raises(AssertionError, match="PruneTopic"):
        check_cases()


def test_the_cases_follow_the_limits_of_the_protocol() -> None:
    assert limit_of(m.ProduceBatch, "records") == m.MAX_BATCH_RECORDS
    assert limit_of(m.Heartbeat, "held") == m.MAX_HELD_SEGMENTS


def test_the_longest_turn_counts_and_not_their_sum() -> None:
    clock = TurnClock()

    async def work() -> None:
        for _ in range(4):
            began = time.thread_time()
            while time.thread_time() - began < 0.01:
                pass
            await asyncio.sleep(0)

    run_timed(work(), clock)

    assert 0.01 <= clock.longest.cpu_seconds < 0.04
    assert clock.longest.wall_seconds >= 0.01


def test_the_value_is_the_longest_stall_over_that_of_a_batch() -> None:
    stalls = {"a": Stall(0.002, 0.5), "b": Stall(0.004, 0.004)}
    measured = summarized(stalls, Stall(0.001, 0.001))

    assert measured.value == 4
    assert (measured.parts["largest"], measured.parts["largest_ms"], measured.parts["largest_wall_ms"]) == ("b", 4, 500)
