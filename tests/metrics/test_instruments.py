"""Names and labels of the daemon's metrics, and the events that update them."""

from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.leadership.policy.transitions import TRANSITIONS, Action, Role
from metrics import events
from metrics.instruments import TERM_END_REASONS, Instruments
from metrics.label_values import DrainState
from metrics.status import ShardCounts, ShardStatus
from tests.support.samples.example_events import example_events


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def instruments(registry):
    return Instruments(registry)


def families(registry):
    return [family for family in registry.collect() if family.name.startswith("headgate_")]


def leading(shard):
    held = ShardStatus(
        shard=shard,
        role="leading",
        leader_epoch=4,
        head_chunk=90,
        producers=3,
        in_flight_batches=2,
        queue_bytes=640,
        counts=ShardCounts(active_segments=5, sealed_segments=6, connected_consumers=7, consumers_in_grace=8),
    )
    return (held,)


def test_labels_are_bounded(registry, instruments):
    """No label has a value that a client chooses."""
    instruments.observe(events.ChunkCommitted(shard=0, seconds=0.1, size_bytes=100, records=5))
    instruments.observe(events.StatusCollected(shards=leading(0), now_seconds=0.0))
    labels = {label for family in families(registry) for sample in family.samples for label in sample.labels}

    allowed = "shard verdict reason outcome state operation kind limit quota connection change scope le version python"
    assert set(allowed.split()) >= labels


def test_label_values_that_are_not_listed_count_as_other(registry, instruments):
    for n in range(50):
        instruments.observe(events.MalformedMessageReceived(reason=f"reason {n}"))
        instruments.observe(events.BatchJudged(shard=0, verdict=f"verdict {n}"))

    assert registry.get_sample_value("headgate_messages_malformed_total", {"reason": "other"}) == 50
    assert registry.get_sample_value("headgate_batches_judged_total", {"shard": "0", "verdict": "other"}) == 50
    assert b"verdict 1" not in generate_latest(registry)


def test_series_with_listed_labels_exist_from_the_start(registry, instruments):
    """A rate shows a first failure only if the series rises from 0."""
    assert registry.get_sample_value("headgate_object_store_errors_total", {"operation": "create"}) == 0
    assert registry.get_sample_value("headgate_drain_polls_total", {"outcome": "timed_out"}) == 0
    assert registry.get_sample_value("headgate_consumers_removed_total", {"reason": "evicted"}) == 0


def test_exactly_one_gauge_of_a_state_is_1(registry, instruments):
    """Also for a state that is not listed."""
    for state in (*get_args(DrainState), "on fire", "ready"):
        instruments.observe(events.DrainServiceStateChanged(state=state))
        samples = {
            sample.labels["state"]: sample.value
            for family in families(registry)
            if family.name == "headgate_drain_service_state"
            for sample in family.samples
        }

        assert sum(samples.values()) == 1
        assert samples[state if state in get_args(DrainState) else "other"] == 1


def test_a_chunk_updates_counters_and_histograms(registry, instruments):
    instruments.observe(events.ChunkCommitted(shard=1, seconds=0.004, size_bytes=2000, records=30))
    instruments.observe(events.ChunkCommitted(shard=1, seconds=0.004, size_bytes=1000, records=12))

    assert registry.get_sample_value("headgate_records_stored_total", {"shard": "1"}) == 42
    assert registry.get_sample_value("headgate_chunks_stored_bytes_total", {"shard": "1"}) == 3000
    assert registry.get_sample_value("headgate_chunk_commit_seconds_count") == 2
    assert registry.get_sample_value("headgate_chunk_commit_seconds_bucket", {"le": "0.005"}) == 2
    assert registry.get_sample_value("headgate_chunk_commit_seconds_bucket", {"le": "0.0025"}) == 0


def test_the_age_of_contact_counts_from_the_last_connected_status(registry, instruments):
    age = "headgate_zookeeper_contact_age_seconds"
    expected = [("connecting", 0, 0), ("connecting", 5, 5), ("connected", 10, 0), ("connected", 15, 0)]
    expected += [("suspended", 20, 5), ("lost", 25, 10), ("connected", 30, 0)]
    for state, now, seconds in expected:
        instruments.observe(events.ZooKeeperStateChanged(state=state))
        instruments.observe(events.StatusCollected(shards=leading(0), now_seconds=now))

        assert registry.get_sample_value(age) == seconds


PRECEDING = {
    events.DrainServiceStateChanged: [events.DrainServiceStateChanged(state="ready")],
    events.ZooKeeperStateChanged: [events.ZooKeeperStateChanged(state="connected")],
    events.StoreOperationSucceeded: [
        events.StoreOperationFailed(operation=each) for each in ("create", "read", "list", "delete")
    ],
}
"""Events without which the example of a type would report the initial state."""


@pytest.mark.parametrize("event", example_events(), ids=lambda event: type(event).__name__)
def test_every_event_changes_a_metric_or_the_readiness(event, registry, instruments):
    def exported():
        return [sample for family in families(registry) for sample in family.samples], dict(instruments.store_problems)

    for preceding in PRECEDING.get(type(event), []):
        instruments.observe(preceding)
    before = exported()
    instruments.observe(event)

    assert exported() != before


def test_the_reasons_for_the_end_of_a_term_are_those_of_the_leadership_table():
    ends = {
        event.value
        for role in (Role.CATCHING_UP, Role.LEADING)
        for event, (_, actions) in TRANSITIONS[role].items()
        if Action.END_TERM in actions and Action.HAND_OVER not in actions
    }

    assert {"handover", *ends} == set(TERM_END_REASONS)


def test_the_end_of_a_term_sets_to_0_what_only_its_leader_has(registry, instruments):
    """A former leader would hide lower values of the present one. Chunks only grow; others report the rest again."""
    for event in example_events():
        if not isinstance(event, (events.TermEnded, events.StatusCollected)):
            instruments.observe(event)
    instruments.observe(events.TermEnded(shard=1, reason="handover"))
    gauges = [family for family in families(registry) if family.type == "gauge"]
    kept = {family.name for family in gauges for each in family.samples if each.labels.get("shard") and each.value}

    chunks = {"headgate_compacted_chunk", "headgate_drain_watermark_chunk", "headgate_snapshot_newest_chunk"}
    reported = {"headgate_device_sessions", "headgate_ledger_foreign_objects", "headgate_snapshot_overdue_seconds"}
    assert kept == chunks | reported
