"""The format of backlogs in a terminal."""

import pytest
from msgspec.structs import replace

from headgate.cli.subscriptions.backlog import NOTES, counted_lines, segment_row, subscription_row
from headgate.views.subscriptions import SegmentBacklogInfo
from tests.support.samples import cluster_overviews

NOW = 1_000_000


def part(segment=0, **fields):
    return SegmentBacklogInfo(segment=segment, sealed=False, **fields)


def backlog(*parts, kind="STREAM", counted_by="spark", as_of_ms=NOW, topic="orders", **more):
    about = {"topic": topic, "subscription_type": kind, "counted_by": counted_by, "as_of_ms": as_of_ms}
    return replace(cluster_overviews.backlog(parts, **about), **more)


COUNTED = {"records": 1234, "size_bytes": 56_000, "oldest_ms": NOW - 7000}
SHRINKING = COUNTED | {"stored_per_second": 1.0, "acknowledged_per_second": 124.4}


@pytest.mark.parametrize(
    ("parts", "kind", "cells"),
    [
        pytest.param([part(**SHRINKING)], "STREAM", ["1 234", "56.0 kB", "7 s", "1.0", "124", "10 s"], id="shrinking"),
        pytest.param(
            [part(**COUNTED, stored_per_second=5.0, acknowledged_per_second=5.0)],
            "QUEUE",
            ["1 234", "56.0 kB", "7 s", "5.0", "5.0", "never"],
            id="never at this rate",
        ),
        pytest.param([part(**COUNTED)], "STREAM", ["1 234", "56.0 kB", "7 s", "?", "?", "?"], id="too new for rates"),
        pytest.param(
            [part(records=5, size_bytes=6)], "STREAM", ["5", "6 B", "?", "?", "?", "?"], id="counted by the leader"
        ),
        pytest.param(
            [part(records=0, size_bytes=0, stored_per_second=0.0, acknowledged_per_second=0.0)],
            "STREAM",
            ["0", "0 B", "-", "0.0", "0.0", "-"],
            id="empty",
        ),
        pytest.param([part()], "CHECKPOINT", ["not tracked", "-", "-", "-", "-", "-"], id="not tracked"),
    ],
)
def test_a_row_marks_unknown_values(parts, kind, cells):
    assert subscription_row(backlog(*parts, kind=kind)) == ["orders", "billing", kind.lower(), *cells]


def test_unknown_values_of_an_external_topic_are_dashes_never_zero():
    known, unknown = part(0, records=0, size_bytes=0, label="a"), part(1, label="b")
    without_times = part(2, records=7, label="c", stored_per_second=1.0, acknowledged_per_second=3.0)
    whole = backlog(known, unknown)

    assert subscription_row(whole)[3:] == ["-", "-", "-", "-", "-", "-"], "the total is not that of the known ones"
    assert segment_row(known, whole)[1:4] == ["  segment 0 a", "active", "0"]
    assert segment_row(unknown, whole)[1:] == ["  segment 1 b", "active", "-", "-", "-", "-", "-", "-"]
    assert segment_row(without_times, whole)[3:] == ["7", "-", "-", "1.0", "3.0", "2 s"]
    checkpoint = backlog(part(0, label="a"), kind="CHECKPOINT")
    assert segment_row(checkpoint.segments[0], checkpoint)[3] == "not tracked"


def test_notes_tell_how_old_or_incomplete_counts_were_made():
    fresh, old = backlog(part(**COUNTED)), backlog(part(**COUNTED), as_of_ms=NOW - 12_000)

    assert counted_lines([fresh], NOW) == []
    assert counted_lines([fresh, old], NOW) == ["as of 12 s ago"]
    assert "1 of 2 counted by the leader" in counted_lines([fresh, backlog(counted_by="leader")], NOW)[0]
    assert counted_lines([], NOW) == []


def test_the_reason_of_an_unknown_value_is_given_once_per_external_topic():
    def unknown(topic, reason="no table", *, failing=False):
        return backlog(part(), counted_by="leader", topic=topic, unknown_reason=reason, failing=failing)

    assert counted_lines([unknown("a"), unknown("a"), unknown("b", "b is broken", failing=True)], NOW) == [
        "a is only partly known: no table",
        "b could not be counted: b is broken",
    ]
    many = counted_lines([unknown(f"t{at}") for at in range(NOTES + 2)], NOW)
    assert many[NOTES:] == ["and 2 more; --json has all reasons"]


def test_a_producer_clock_that_is_ahead_gives_no_negative_age():
    assert subscription_row(backlog(part(**COUNTED | {"oldest_ms": NOW + 5000})))[5] == "0.0 s"
