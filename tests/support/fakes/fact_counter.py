"""Counts facts like the query plans of Spark (drain.backlog.plans), one after the other and without Spark.

That it returns the same is tested with the plans, in tests/drain/backlog/test_plans.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from drain.backlog.aggregates import (
    AGGREGATE_KEY,
    NO_FACT,
    NO_ID,
    POSITION,
    PRESENT,
    REMOVED,
    SCHEMA,
    SEALED,
    SUBSCRIPTION_TYPES,
)
from drain.backlog.timestamp_index import index_slot

_KINDS: Final = {
    "created": PRESENT,
    "subscribed": PRESENT,
    "sealed": SEALED,
    "pruned": REMOVED,
    "topic_deleted": REMOVED,
    "unsubscribed": REMOVED,
}


@dataclass(slots=True)
class _Aggregate:
    records: int = 0
    size_bytes: int | None = None
    max_value: int | None = None
    timestamp_ms: int | None = None

    def add(self, value: int | None, size_bytes: int | None, timestamp_ms: int | None, *, is_record: bool) -> None:
        self.records += 1
        is_highest = value is not None and (self.max_value is None or value >= self.max_value)
        if is_highest:
            self.max_value = value
        if is_record:
            self.size_bytes = (self.size_bytes or 0) + (size_bytes or 0)
            if is_highest:
                self.timestamp_ms = timestamp_ms


class FactCounter:
    """The aggregates of the facts that were added since it was last emptied."""

    def __init__(self) -> None:
        self._aggregates: dict[tuple[int, ...], _Aggregate] = {}

    def add(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Add facts: the columns of drain.spark.fact_source.FACTS with their values; those that are absent are null."""
        for fact in facts:
            offset, subscription_id = fact.get("offset"), fact.get("subscription_id")
            kind, value = _kind_of(fact), _value_of(fact)
            ids = (fact.get("topic_id"), subscription_id, fact.get("segment"), fact.get("bucket"))
            key = (
                fact["shard"],
                *(NO_ID if each is None else each for each in ids),
                fact.get("seek_generation") or 0,
                kind,
            )
            self._aggregates.setdefault(key, _Aggregate()).add(
                value,
                fact.get("size_bytes"),
                fact.get("timestamp_ms"),
                is_record=subscription_id is None and offset is not None,
            )

    def take(self) -> pa.Table:
        """Return the aggregates (drain.backlog.aggregates.AGGREGATES), and begin again with none."""
        names = (*AGGREGATE_KEY, "kind")
        rows = [
            dict(zip(names, key, strict=True))
            | {
                "records": each.records,
                "size_bytes": each.size_bytes,
                "max_value": each.max_value,
                "timestamp_ms": each.timestamp_ms,
            }
            for key, each in self._aggregates.items()
        ]
        self._aggregates = {}
        return pa.Table.from_pylist(rows, schema=SCHEMA)


def _kind_of(fact: Mapping[str, Any]) -> int:
    offset = fact.get("offset")
    if offset is None:
        return _KINDS.get(fact["fact"], NO_FACT)
    if fact.get("subscription_id") is None:
        return index_slot(offset)
    return POSITION if fact.get("end_offset") is None else offset


def _value_of(fact: Mapping[str, Any]) -> int | None:
    subscription_type = fact.get("subscription_type")
    values = (
        fact.get("end_offset"),
        fact.get("offset"),
        None if subscription_type is None else SUBSCRIPTION_TYPES.index(subscription_type),
    )
    return next((value for value in values if value is not None), None)
