"""The benchmark of stalls: every kind of request has a case, and the turns of the loop are measured."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from bench.cluster.loop_stall import PLAIN, Group, check_cases, repeated, summarized
from bench.harness.one_leader import Stall, TurnClock, run_timed
from bench.harness.worst_cases import CASES, QUERIES, limit_of, plain
from headgate.protocol import messages as m
from shard.access.requirements import _ACTS
from shard.access.rules import Action


def test_every_kind_of_request_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    check_cases()
    monkeypatch.delitem(CASES, m.PruneTopic)

    with pytest.raises(AssertionError, match="PruneTopic"):
        check_cases()


def test_the_cases_follow_the_limits_of_the_protocol() -> None:
    assert limit_of(m.ProduceBatch, "records") == m.MAX_BATCH_RECORDS
    assert limit_of(m.Heartbeat, "held") == m.MAX_HELD_SEGMENTS
    assert limit_of(m.ConfirmRevoked, "released") == 250


@pytest.mark.parametrize("kind", sorted(QUERIES, key=str), ids=lambda kind: kind.__name__)
def test_a_query_only_needs_the_right_to_describe(kind: type[m.RequestBody]) -> None:
    """Any other request could change the state that the queries after it find on the same leader."""
    act = _ACTS[kind](SimpleNamespace(topic="orders", subscription="billing"))

    assert act is not None
    assert act.action is Action.DESCRIBE


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


async def _nothing(*_: object) -> None: ...


def test_only_the_plain_batch_and_long_stalls_are_repeated() -> None:
    groups = [
        Group(plain, {PLAIN: _nothing}),
        Group(plain, {"short": _nothing}),
        Group(plain, {"short": _nothing, "long": _nothing}),
        Group(plain, {"timers": _nothing}, start="long start"),
    ]
    stalls = {name: Stall(0.011 if name.startswith("long") else 0.009, 1.0) for name in ("short", "long", "long start")}

    again = [(group.start, list(group.drives)) for group in repeated(groups, {**stalls, PLAIN: Stall(0.001, 0.001)})]

    assert [(None, [PLAIN]), (None, ["long"]), ("long start", [])] == again


def test_the_shorter_times_of_two_rounds_count() -> None:
    assert Stall(1, 2) == Stall(1, 3).least(Stall(2, 2))
