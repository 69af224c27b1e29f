"""Which ledger entries are events for people, and the text of each. Pure.

An event says what changed: who leads, which segments exist, who reads, and what became of records that cannot be
processed. Records, acknowledgements, grants and connections are too many to read one by one, so they are no events.
A text contains no key, and no reason that a handler gave: those are parts of records.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headgate.model import entries as e
from headgate.model.text import listed

TAKEN: Final = {"timed_out": "it did not confirm in time", "stalled": "it made no progress"}
"""Reasons of a release that are events: a holder lost its segment against its will."""


def _segments(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"segment{'s' * (len(found) > 1)} {listed(found)}"


TEXTS: Final[Mapping[type[e.Entry], Callable[[Any], str]]] = {
    e.TermStarted: lambda it: f"term {it.leader_epoch} began, led by {it.instance}",
    e.ShardsGrown: lambda it: f"the cluster has {it.counts[-1]} shards",
    e.LedgerTrimmed: lambda it: f"chunks below {it.below} are deleted",
    e.TopicCreated: lambda it: f"created by {it.user}, segments: {it.segments}",
    e.TopicImported: lambda it: f"imported by {it.user}, segments: {len(it.segments)}",
    e.LayoutExtended: lambda it: f"new segments of its source: {len(it.created)}, sealed: {len(it.sealed)}",
    e.TopicDeleted: lambda _: "deleted",
    e.TopicPolicySet: lambda it: "policy set" if it.changed else "a command changed nothing",
    e.SegmentSplit: lambda it: f"segment {it.segment} was split at offset {it.end_offset}: {it.reason or 'by command'}",
    e.SegmentRolled: lambda it: f"segment {it.segment} was replaced at offset {it.end_offset}: {it.reason}",
    e.SegmentsMerged: lambda it: f"{_segments(it.segments)} were merged: {it.reason or 'by command'}",
    e.SegmentsPruned: lambda it: f"{_segments(it.segments)} pruned, with their records",
    e.ProducerDeleted: lambda _: "a named producer was deleted",
    e.SubscriptionCreated: lambda it: f"created by {it.user}, type {it.subscription_type or 'not known yet'}",
    e.SubscriptionConfigured: lambda it: f"type {it.subscription_type}, order {it.order}, balanced by {it.balance}",
    e.SubscriptionDeleted: lambda _: "deleted",
    e.SubscriptionSeek: lambda it: f"seek by command, now seek generation {it.seek_generation}",
    e.DeliveryPolicySet: lambda _: "has a new delivery policy",
    e.ConsumerRemoved: lambda it: f"consumer {it.consumer} removed: {it.reason}",
    e.SegmentReleased: lambda it: f"segment {it.segment} was taken from its holder: {TAKEN[it.reason]}",
    e.SegmentsDrained: lambda it: f"{_segments(it.segments)} drained",
    e.DeliveriesFailed: lambda it: f"deliveries failed: {len(it.records)}",
    e.KeyParked: lambda _: "a key was parked",
    e.KeyResumed: lambda it: f"a parked key was {'dropped' if it.dropped else 'resumed'}",
    e.KeyUnparked: lambda _: "a key is parked no longer",
    e.ParkedRecordsStored: lambda it: f"dead letters of parked keys stored: {len(it.numbers)}",
}


def event_text(entry: e.Entry) -> str | None:
    """Return the text of ``entry``; None: it is no event."""
    if type(entry) not in TEXTS or (isinstance(entry, e.SegmentReleased) and entry.reason not in TAKEN):
        return None
    return TEXTS[type(entry)](entry)
