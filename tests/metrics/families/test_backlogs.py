"""Backlog metrics: totals per shard, and series of the busiest subscriptions."""

import math

import pytest
from prometheus_client import CollectorRegistry

from headgate.views.subscriptions import SegmentBacklogInfo
from metrics.events import BacklogUpdated, TermEnded
from metrics.instruments import Instruments
from tests.support.samples import cluster_overviews

NOW = 1_000_000


def backlog(topic="orders", subscription="billing", **fields):
    given = {"records": 10, "size_bytes": 100, "oldest_ms": NOW - 5000} | fields
    segments = [SegmentBacklogInfo(segment=0, sealed=False, **given)]
    return cluster_overviews.backlog(segments, topic=topic, subscription=subscription, as_of_ms=NOW - 1000)


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def instruments(registry):
    return Instruments(registry, ["orders"], max_subscriptions=2)


def series(registry, name):
    return {
        tuple(sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"headgate_{name}"
    }


def update(instruments, backlogs, shard=3):
    instruments.observe(BacklogUpdated(shard=shard, backlogs=tuple(backlogs), now_ms=NOW))


def test_a_shard_exports_sums_and_the_highest_age(instruments, registry):
    rates = {"stored_per_second": 2.0, "acknowledged_per_second": 0.9}
    update(instruments, [backlog(), backlog("other", oldest_ms=NOW - 9000, **rates)])

    assert series(registry, "backlog_records") == {("3",): 20}
    assert series(registry, "backlog_bytes") == {("3",): 200}
    assert series(registry, "backlog_oldest_unacknowledged_seconds") == {("3",): 9}
    assert series(registry, "backlog_never_drained_subscriptions") == {("3",): 1}
    assert series(registry, "backlog_as_of_age_seconds") == {("3",): 1}


def test_an_unknown_age_is_nan_and_not_0(instruments, registry):
    update(instruments, [backlog(oldest_ms=None), backlog("b", records=0, oldest_ms=None)])
    assert math.isnan(series(registry, "backlog_oldest_unacknowledged_seconds")["3",])

    update(instruments, [backlog("b", records=0, oldest_ms=None)])
    assert series(registry, "backlog_oldest_unacknowledged_seconds") == {("3",): 0}


def test_what_is_not_known_is_nan_and_nothing_known_has_no_series(instruments, registry):
    age_only, nothing = backlog("orders", "b", records=None), backlog("orders", "c", records=None, oldest_ms=None)
    update(instruments, [backlog(size_bytes=None), age_only, nothing])

    records = series(registry, "subscription_backlog_records")
    assert records.keys() == {("orders", "billing"), ("orders", "b")}
    assert math.isnan(records["orders", "b"])
    assert series(registry, "subscription_oldest_unacknowledged_seconds")["orders", "b"] == 5
    assert math.isnan(series(registry, "subscription_backlog_bytes")["orders", "billing"])


def test_a_subscription_has_four_series(instruments, registry):
    update(instruments, [backlog()])

    assert series(registry, "subscription_backlog_records") == {("orders", "billing"): 10}
    assert series(registry, "subscription_backlog_bytes") == {("orders", "billing"): 100}
    assert series(registry, "subscription_oldest_unacknowledged_seconds") == {("orders", "billing"): 5}
    assert math.isnan(series(registry, "subscription_drained_in_seconds")["orders", "billing"])


def test_the_busiest_subscriptions_of_all_shards_and_those_of_named_topics_have_series(instruments, registry):
    """Those of named topics do not count against the limit."""
    update(instruments, [backlog("logs", f"s{at}", records=10**at) for at in range(3)])
    update(instruments, [backlog("clicks", records=50), backlog(records=0)], shard=4)

    assert series(registry, "subscription_backlog_records") == {
        ("logs", "s2"): 100,
        ("clicks", "billing"): 50,
        ("orders", "billing"): 0,
    }
    assert series(registry, "subscriptions_without_series") == {(): 2}


def test_series_of_deleted_subscriptions_and_ended_terms_are_removed(instruments, registry):
    update(instruments, [backlog(), backlog(subscription="audit")])
    update(instruments, [backlog()])
    assert set(series(registry, "subscription_backlog_records")) == {("orders", "billing")}

    instruments.observe(TermEnded(shard=3, reason="handover"))
    assert series(registry, "subscription_backlog_records") == {}
    assert series(registry, "backlog_records") == {}
