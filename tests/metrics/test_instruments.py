"""Names, labels and verbs of the daemon's metrics."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.commit import CommitObserver
from controller.leader.leader import LeaderObserver
from controller.leader.shard_controller import ControllerObserver
from controller.leadership.transitions import TRANSITIONS, Action, Role
from coordinator.ports import CoordinatorObserver, PollOutcome, WeightChange
from headgate.protocol.messages import ConsumerDescription, SegmentProgress, SubscriptionDescription
from metrics.drain_instruments import DRAIN_STATES
from metrics.instruments import POLL_OUTCOMES, TERM_END_REASONS, WEIGHT_CHANGES, Instruments
from metrics.status import DaemonStatus, ShardStatus


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def instruments(registry):
    return Instruments(registry)


def families(registry):
    return [family for family in registry.collect() if family.name.startswith("headgate_")]


def blocked(shard, *segments):
    progress = [
        SegmentProgress(segment=segment, status="blocked", acknowledged_offset=0, next_offset=5, blocked_by=[0])
        for segment in segments
    ]
    subscription = SubscriptionDescription(
        topic="orders",
        subscription="billing",
        subscription_id=7,
        type="STREAM",
        order="key",
        seek_generation=0,
        consumers=[
            ConsumerDescription(consumer="a", incarnation=1, connected=True, segments=[]),
            ConsumerDescription(consumer="b", incarnation=1, connected=False, segments=[]),
        ],
        segments=progress,
    )
    held = ShardStatus(
        shard=shard,
        role="leading",
        leader_epoch=4,
        head=90,
        producers=3,
        in_flight_batches=2,
        queue_bytes=640,
        subscriptions=(subscription,),
    )
    return DaemonStatus(instance="one", shards=(held,))


def test_every_name_is_a_noun_with_its_unit(registry, instruments):
    """Names are lower case with the project's prefix, and each metric says what it is."""
    for family in families(registry):
        assert re.fullmatch(r"headgate_[a-z]+(_[a-z]+)*", family.name), family.name
        assert family.documentation.endswith("."), family.name
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_bytes")), family.name


def test_labels_are_bounded(registry, instruments):
    """No metric is labelled by anything that a client can choose."""
    instruments.chunk_committed(0, 0.1, 100, 5)
    instruments.status_collected(blocked(0, 1), 0.0)
    labels = {label for family in families(registry) for sample in family.samples for label in sample.labels}

    assert {
        "shard",
        "verdict",
        "reason",
        "outcome",
        "state",
        "operation",
        "kind",
        "limit",
        "change",
        "le",
        "version",
        "python",
    } >= labels


def test_a_value_that_is_not_listed_counts_as_other(registry, instruments):
    """However many values a caller invents, there is one series for all of them."""
    for n in range(50):
        instruments.message_malformed(f"reason {n}")
        instruments.batch_judged(0, f"verdict {n}")

    assert registry.get_sample_value("headgate_messages_malformed_total", {"reason": "other"}) == 50
    assert registry.get_sample_value("headgate_batches_judged_total", {"shard": "0", "verdict": "other"}) == 50
    assert b"verdict 1" not in generate_latest(registry)


def test_enumerated_series_exist_before_anything_happened(registry, instruments):
    """A first failure must be a rise from 0, not a series that appears at 1."""
    assert registry.get_sample_value("headgate_object_store_errors_total", {"operation": "create"}) == 0
    assert registry.get_sample_value("headgate_drain_polls_total", {"outcome": "timed_out"}) == 0
    assert registry.get_sample_value("headgate_consumers_removed_total", {"reason": "evicted"}) == 0


def test_no_created_series(registry, instruments):
    """Creation times would double the number of series."""
    assert b"_created" not in generate_latest(registry)


def test_a_state_is_exactly_one_of_its_values(registry, instruments):
    """One gauge a state, and their sum is 1, before and after each change, for unlisted words too."""
    for state in (*DRAIN_STATES, "on fire", "ready"):
        instruments.drain_service_state_changed(state)
        samples = {
            sample.labels["state"]: sample.value
            for family in families(registry)
            if family.name == "headgate_drain_service_state"
            for sample in family.samples
        }

        assert sum(samples.values()) == 1
        assert samples[state if state in DRAIN_STATES else "other"] == 1


def test_a_reign_that_ended_leaves_nothing_queued(registry, instruments):
    """What was in memory went with the reign."""
    instruments.term_started(3, 9)
    instruments.queue_size_changed(3, 500)
    assert registry.get_sample_value("headgate_shard_is_leader", {"shard": "3"}) == 1
    assert registry.get_sample_value("headgate_shard_leader_epoch", {"shard": "3"}) == 9

    instruments.term_ended(3, "number_taken")

    assert registry.get_sample_value("headgate_shard_is_leader", {"shard": "3"}) == 0
    assert registry.get_sample_value("headgate_ingest_queue_bytes", {"shard": "3"}) == 0
    assert registry.get_sample_value("headgate_leader_terms_ended_total", {"reason": "number_taken"}) == 1


def test_a_chunk_counts_its_records_and_bytes(registry, instruments):
    """One call feeds the counters and both histograms."""
    instruments.chunk_committed(1, 0.004, 2000, 30)
    instruments.chunk_committed(1, 0.004, 1000, 12)

    assert registry.get_sample_value("headgate_records_stored_total", {"shard": "1"}) == 42
    assert registry.get_sample_value("headgate_chunks_stored_bytes_total", {"shard": "1"}) == 3000
    assert registry.get_sample_value("headgate_chunk_commit_seconds_count") == 2
    assert registry.get_sample_value("headgate_chunk_commit_seconds_bucket", {"le": "0.005"}) == 2
    assert registry.get_sample_value("headgate_chunk_commit_seconds_bucket", {"le": "0.0025"}) == 0


def test_what_a_daemon_holds_is_read_from_the_snapshot(registry, instruments):
    """Consumers, producers and leadership follow the snapshot, not a count of their own."""
    instruments.status_collected(blocked(2, 5), 10.0)

    assert registry.get_sample_value("headgate_shard_is_leader", {"shard": "2"}) == 1
    assert registry.get_sample_value("headgate_ledger_head_chunk", {"shard": "2"}) == 90
    assert registry.get_sample_value("headgate_producers", {"shard": "2"}) == 3
    assert registry.get_sample_value("headgate_batches_in_flight", {"shard": "2"}) == 2
    assert registry.get_sample_value("headgate_ingest_queue_bytes", {"shard": "2"}) == 640
    assert registry.get_sample_value("headgate_consumers", {"shard": "2", "state": "connected"}) == 1
    assert registry.get_sample_value("headgate_consumers", {"shard": "2", "state": "in_grace"}) == 1


def test_the_longest_blocked_segment_is_timed_from_when_it_was_first_seen(registry, instruments):
    """A segment that is released and another that is blocked later do not add up."""
    longest = "headgate_segments_blocked_longest_seconds"
    instruments.status_collected(blocked(0, 5), 100.0)
    instruments.status_collected(blocked(0, 5, 6), 130.0)
    assert registry.get_sample_value(longest) == 30

    instruments.status_collected(blocked(0, 6), 150.0)
    assert registry.get_sample_value(longest) == 20

    instruments.status_collected(blocked(0), 160.0)
    assert registry.get_sample_value(longest) == 0

    instruments.status_collected(blocked(0, 6), 170.0)
    assert registry.get_sample_value(longest) == 0


def test_the_age_of_contact_counts_from_the_last_snapshot_in_contact(registry, instruments):
    """0 while connected, then it grows, and back to 0."""
    age = "headgate_zookeeper_contact_age_seconds"
    expected = [("connecting", 0, 0), ("connecting", 5, 5), ("connected", 10, 0), ("connected", 15, 0)]
    expected += [("suspended", 20, 5), ("lost", 25, 10), ("connected", 30, 0)]
    for state, now, seconds in expected:
        instruments.zookeeper_state_changed(state)
        instruments.status_collected(blocked(0), now)

        assert registry.get_sample_value(age) == seconds


@pytest.mark.parametrize(
    "protocol", [CommitObserver, ControllerObserver, LeaderObserver, CoordinatorObserver], ids=lambda p: p.__name__
)
def test_the_instruments_are_the_observer_that_the_shells_want(protocol, instruments):
    """Every verb of every observer exists, and takes arguments of the same names."""
    verbs = [name for name, verb in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]

    assert verbs
    for verb in verbs:
        wanted = [name for name in inspect.signature(getattr(protocol, verb)).parameters if name != "self"]
        assert wanted == list(inspect.signature(getattr(instruments, verb)).parameters), verb


def test_every_way_a_reign_ends_has_its_own_series():
    """The reasons listed here are those of the leadership table."""
    ends = {
        event.value
        for role in (Role.CATCHING_UP, Role.LEADING)
        for event, (_, actions) in TRANSITIONS[role].items()
        if Action.END_TERM in actions
    }

    assert {"handover", *ends} == set(TERM_END_REASONS)


def test_weight_changes_are_those_of_the_coordinator():
    """The changes listed here are those that it tells."""
    assert get_args(WeightChange) == WEIGHT_CHANGES


def test_poll_outcomes_are_those_of_the_poller():
    """The outcomes listed here are those of the coordinator."""
    assert set(get_args(PollOutcome)) == set(POLL_OUTCOMES)
