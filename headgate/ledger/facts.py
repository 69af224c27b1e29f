"""The facts that an entry states in columns, so that Spark and consumers never decode entries.

One entry can state several facts. docs/ledger.md lists the facts and their columns.

* Of the facts with an offset, only a record has no subscription_id, and only a position has one and
  no end_offset. Counting distinguishes them by these columns: a new fact must not set an offset.
* A segment without a ``position`` fact for a subscription begins at 0 there.

Pure.
"""

from collections.abc import Sequence
from typing import Any

from headgate.model import entries as e
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import Layout


def facts_of(entry: e.AnyEntry, layout: Layout | None) -> list[dict[str, Any]]:
    """Return the facts that ``entry`` states, except records, as rows (column → value)."""
    match entry:
        case e.RecordsAcknowledged():
            return [
                {
                    "fact": "acknowledged",
                    "topic_id": entry.topic_id,
                    "subscription_id": entry.subscription_id,
                    "segment": acknowledged.segment,
                    "offset": acknowledged.first_offset,
                    "end_offset": acknowledged.end_offset,
                    "seek_generation": entry.seek_generation,
                    "bucket": bucket,
                }
                for acknowledged in entry.ranges
                for bucket in (
                    range(acknowledged.first_bucket, acknowledged.end_bucket) if acknowledged.end_bucket else (None,)
                )
            ]
        case e.TopicCreated():
            assert entry.buckets == KEY_BUCKETS, (
                "no fact states the number of buckets of a topic: readers rely on the default"
            )
            return [{"fact": "created", "topic_id": entry.topic_id, "segment": n} for n in range(entry.segments)]
        case e.TopicImported():
            return _import_facts(entry.topic_id, entry.segments, {})
        case e.LayoutExtended():
            return _import_facts(entry.topic_id, entry.created, entry.sealed)
        case e.SegmentSplit() | e.SegmentRolled():
            return _seal_facts(entry.topic_id, (entry.segment,), (entry.end_offset,), layout)
        case e.SegmentsMerged():
            return _seal_facts(entry.topic_id, entry.segments, entry.end_offsets, layout)
        case e.SegmentsPruned():
            return [{"fact": "pruned", "topic_id": entry.topic_id, "segment": n} for n in entry.segments]
        case e.TopicDeleted():
            return [{"fact": "topic_deleted", "topic_id": entry.topic_id}]
        case e.SubscriptionCreated():
            subscribed = _subscribed_fact(entry.topic_id, entry.subscription_id, entry.subscription_type)
            return [subscribed, *_position_facts(entry.topic_id, entry.subscription_id, entry.positions, 0)]
        case e.SubscriptionConfigured():
            return [_subscribed_fact(entry.topic_id, entry.subscription_id, entry.subscription_type)]
        case e.SubscriptionSeek():
            return _position_facts(entry.topic_id, entry.subscription_id, entry.positions, entry.seek_generation)
        case e.SubscriptionDeleted():
            return [{"fact": "unsubscribed", "topic_id": entry.topic_id, "subscription_id": entry.subscription_id}]
        case _:
            return []


def _seal_facts(
    topic_id: int, sealed: Sequence[int], end_offsets: Sequence[int], layout: Layout | None
) -> list[dict[str, Any]]:
    assert layout is not None, "a split or merge requires its topic's layout"
    rows: list[dict[str, Any]] = [
        {"fact": "sealed", "topic_id": topic_id, "segment": segment, "end_offset": end}
        for segment, end in zip(sealed, end_offsets, strict=True)
    ]
    children = layout.segments[sealed[0]].children
    rows += [{"fact": "created", "topic_id": topic_id, "segment": child} for child in children]
    return rows


def _import_facts(topic_id: int, created: Sequence[e.ImportedSegment], sealed: dict[int, int]) -> list[dict[str, Any]]:
    ends = sealed | {segment.segment: segment.end_offset for segment in created if segment.end_offset is not None}
    rows: list[dict[str, Any]] = [
        {"fact": "created", "topic_id": topic_id, "segment": segment.segment} for segment in created
    ]
    rows += [
        {"fact": "sealed", "topic_id": topic_id, "segment": segment, "end_offset": end}
        for segment, end in sorted(ends.items())
    ]
    return rows


def _subscribed_fact(topic_id: int, subscription_id: int, kind: str | None) -> dict[str, Any]:
    return {
        "fact": "subscribed",
        "topic_id": topic_id,
        "subscription_id": subscription_id,
        "subscription_type": kind or "",
    }


def _position_facts(
    topic_id: int, subscription_id: int, positions: dict[int, int], seek_generation: int
) -> list[dict[str, Any]]:
    return [
        {
            "fact": "position",
            "topic_id": topic_id,
            "subscription_id": subscription_id,
            "segment": segment,
            "offset": offset,
            "seek_generation": seek_generation,
        }
        for segment, offset in sorted(positions.items())
    ]
