"""The rows of `headgate top`: rates from two answers, sorting, search, and text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.cli.cluster.activity import (
    COLUMNS,
    ORDERS,
    WINDOW_SECONDS,
    activities,
    compared_with,
    count,
    headline,
    in_order,
    is_stale,
    matching,
    number_cells,
    rate,
    time_of_day,
)
from headgate.cli.cluster.top import ORDERS as OFFERED_ORDERS
from tests.support.samples.cluster_overviews import NOW_MS, blocked, cluster, daemon, subscription, unreachable

UNCOUNTED = {"acknowledged_per_second": None, "outlook": "unknown", "drained_in_seconds": None}


def at(seconds, *rows, **fields):
    return replace(cluster(*rows), as_of_ms=NOW_MS + seconds * 1000, **fields)


def test_sparks_rate_is_used_where_there_is_one():
    (row,) = activities(at(10, subscription(backlog_records=900)), at(0, subscription(backlog_records=1200)))

    assert (row.acknowledged_per_second, row.estimated, row.outlook, row.drained_in_seconds) == (
        25.0,
        False,
        "shrinking",
        240.0,
    )


def test_before_spark_has_counted_the_rate_follows_from_two_answers():
    before = at(0, subscription(backlog_records=1200, **UNCOUNTED))
    (row,) = activities(at(10, subscription(backlog_records=900, **UNCOUNTED)), before)

    assert (row.acknowledged_per_second, row.estimated) == (50.0, True), "20/s in, and 30/s less backlog"
    assert (row.outlook, row.drained_in_seconds) == ("shrinking", 30.0)
    (growing,) = activities(at(10, subscription(backlog_records=2000, **UNCOUNTED)), before)
    assert (growing.acknowledged_per_second, growing.outlook) == (0.0, "never"), "a rate is never below 0"


@pytest.mark.parametrize(
    "before",
    [
        None,
        at(0, subscription("other", **UNCOUNTED)),
        at(0, subscription(**UNCOUNTED), daemon="vm-2"),
        at(9.5, subscription(**UNCOUNTED)),
        at(0, subscription(**UNCOUNTED | {"backlog_records": None})),
    ],
    ids=["the first answer", "a new subscription", "another clock", "too soon", "an unknown backlog"],
)
def test_without_a_comparison_the_rate_is_unknown(before):
    (row,) = activities(at(10, subscription(**UNCOUNTED)), before)

    assert (row.acknowledged_per_second, row.estimated, row.outlook) == (None, False, "unknown")


def test_the_earliest_answer_in_the_window_is_compared_with():
    history = [(float(second), at(second)) for second in (0, 10, 20, 45)]

    assert compared_with(history, 45.0) is history[2][1]
    assert compared_with(history, 10.0 + WINDOW_SECONDS) is history[1][1]
    assert compared_with([], 0.0) is None


ROWS = activities(
    cluster(
        subscription("a", stored_per_second=1.0, backlog_records=None, acknowledged_per_second=2.0),
        subscription("b", stored_per_second=3.0, backlog_records=5, acknowledged_per_second=None),
        blocked("c", stored_per_second=2.0, backlog_records=9, acknowledged_per_second=7.0),
        subscription("d", topic="Audit", stored_per_second=3.0, backlog_records=5, acknowledged_per_second=7.0),
    )
)


def names(rows):
    return "".join(each.summary.subscription for each in rows)


@pytest.mark.parametrize(
    ("order", "expected", "reversed_order"),
    [
        ("lag", "cdba", "dbca"),
        ("in", "dbca", "acdb"),
        ("out", "dcab", "adcb"),
        ("blocked", "cdab", "dabc"),
        ("name", "dabc", "cbad"),
    ],
)
def test_rows_are_sorted_with_unknown_values_last(order, expected, reversed_order):
    assert names(in_order(ROWS, order)) == expected
    assert names(in_order(ROWS, order, reverse=True)) == reversed_order


def test_the_option_offers_every_order():
    assert OFFERED_ORDERS == ORDERS


def test_a_search_finds_parts_of_both_names_in_any_case():
    assert names(matching(ROWS, "aud")) == "d"
    assert names(matching(ROWS, "B")) == "b"
    assert matching(ROWS, "") == ROWS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("2", "20", "25", "1 200", "0", "4 min")),
        ({"disconnected_consumers": 1, "outlook": "never"}, ("2+1 away", "20", "25", "1 200", "0", "never")),
        ({**UNCOUNTED, "backlog_records": None, "stored_per_second": None}, ("2", "?", "?", "?", "0", "?")),
        (
            {"type": "CHECKPOINT", "outlook": "not_tracked", "acknowledged_per_second": None},
            ("2", "20", "-", "-", "0", "-"),
        ),
        ({"backlog_records": 0, "outlook": "empty", "drained_in_seconds": 0.0}, ("2", "20", "25", "0", "0", "-")),
    ],
    ids=["all known", "growing", "nothing known", "checkpoint", "empty"],
)
def test_cells_fit_their_columns(fields, expected):
    (row,) = activities(cluster(subscription(**fields)))

    assert number_cells(row) == expected
    assert all(len(cell) < width for cell, (_, width) in zip(expected, COLUMNS, strict=True))


def test_numbers_are_short():
    assert [count(n) for n in (0, 9999, 10_000, 999_499, 999_950, 4_560_000, 10**18)] == [
        *("0", "9 999", "10k", "999k", "1M", "4.56M", "1000P")
    ]
    assert [rate(n) for n in (None, 0.0, 0.25, 9.94, 10.4, 999.0, 1234.0)] == [
        "?",
        "0",
        "0.2",
        "9.9",
        "10",
        "999",
        "1.23k",
    ]


def test_the_headline_says_what_is_missing():
    assert headline(cluster()) == "local: 1 of 1 daemons ready, in 20/s, backlog 1 200, 0 blocked"
    lost = cluster(daemons=(daemon(), unreachable()), leaders=("vm-1", None))
    assert headline(lost).startswith("local: 1 of 2 daemons ready, 1 of 2 shards WITHOUT LEADER, in 20/s")


def test_data_are_stale_after_three_intervals_and_not_before_five_seconds():
    assert [is_stale(age, 0.5) for age in (5.0, 5.1)] == [False, True]
    assert [is_stale(age, 10.0) for age in (30.0, 30.1)] == [False, True]


def test_the_time_is_that_of_the_daemon():
    assert time_of_day(NOW_MS) == "22:13:20 UTC"
