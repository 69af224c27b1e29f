"""Backlogs of one subscription."""

from collections.abc import Sequence
from typing import Any

from headgate.protocol.backlog import summarize_backlog
from headgate.views.subscriptions import BacklogInfo, SegmentBacklogInfo


def backlog(segments: Sequence[SegmentBacklogInfo], **fields: Any) -> BacklogInfo:
    """Return the backlog of `billing`, a STREAM of topic orders that Spark has counted, unless ``fields`` say otherwise."""
    given = {"topic": "orders", "subscription": "billing", "subscription_type": "STREAM", "counted_by": "spark"}
    return summarize_backlog(segments=segments, **{"as_of_ms": 1, **given, **fields})
