"""The benchmark of stalls: every kind of request has a case, and the turns of the loop are measured."""

from types import SimpleNamespace

import pytest

from bench.cluster.loop_stall import PLAIN, REPEATED, Group, check_cases, repeated, summarized
from bench.harness.one_leader import Stall
from bench.harness.worst_cases import CASES, QUERIES, limit_of, plain
from headgate.protocol.request_fields import MAX_BATCH_RECORDS, MAX_HELD_SEGMENTS, RequestBody
from headgate.protocol.requests import ConfirmRevoked, Heartbeat, ProduceBatch, PruneTopic
from shard.access.rules import _ACTS, Action


def test_every_kind_of_request_has_a_case() -> None:
    check_cases()

    with pytest.raises(AssertionError, match="PruneTopic"):
        check_cases(case for case in CASES if case.kind is not PruneTopic)


def test_the_cases_follow_the_limits_of_the_protocol() -> None:
    assert limit_of(ProduceBatch, "records") == MAX_BATCH_RECORDS
    assert limit_of(Heartbeat, "held") == MAX_HELD_SEGMENTS
    assert limit_of(ConfirmRevoked, "released") == 250


@pytest.mark.parametrize("kind", dict.fromkeys(case.kind for case in QUERIES), ids=lambda kind: kind.__name__)
def test_a_query_only_needs_the_right_to_describe(kind: type[RequestBody]) -> None:
    """Any other request could change the state that the queries after it find on the same leader."""
    act = _ACTS[kind](SimpleNamespace(topic="orders", subscription="billing"))

    assert act.action is Action.DESCRIBE


def test_the_value_is_the_longest_stall_over_that_of_a_batch() -> None:
    stalls = {"a": Stall(0.002, 0.5), "b": Stall(0.004, 0.004)}
    measured = summarized(stalls, Stall(0.001, 0.001))

    assert measured.value == 4
    assert (measured.parts["largest"], measured.parts["largest_ms"], measured.parts["largest_wall_ms"]) == ("b", 4, 500)


def test_only_the_longest_cases_are_repeated() -> None:
    stalls = {PLAIN: Stall(0, 0), "short": Stall(0.1, 0), **{str(n): Stall(1 + n, 0) for n in range(REPEATED)}}
    drives = [[PLAIN], ["short", "1"], ["short"]]
    groups = [*(Group(plain, dict.fromkeys(names)) for names in drives), Group(plain, {}, start="2")]

    assert [[PLAIN], ["1"], []] == [list(group.drives) for group in repeated(groups, stalls)]
