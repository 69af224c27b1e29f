"""Backlogs as rows of the drain protocol. Pure: values in, values out."""

from collections.abc import Iterable, Mapping

from drain.backlog.merge import Backlog
from drain.backlog.rates import BacklogKey, Rates
from drain.protocol import BacklogRow

_NO_RATES: Mapping[BacklogKey, Rates] = {}


def backlog_rows(
    backlogs: Iterable[Backlog], *, shard: int, rates: Mapping[BacklogKey, Rates] = _NO_RATES
) -> list[BacklogRow]:
    """Return ``backlogs`` of one shard; a rate that is missing is unknown."""
    rows: list[BacklogRow] = []
    for backlog in backlogs:
        rate = rates.get((backlog.topic_id, backlog.subscription_id, backlog.segment))
        rows.append(
            BacklogRow(
                shard=shard,
                topic_id=backlog.topic_id,
                subscription_id=backlog.subscription_id,
                segment=backlog.segment,
                seek_generation=backlog.seek_generation,
                sealed=backlog.sealed,
                records=backlog.records,
                size_bytes=backlog.size_bytes,
                oldest_ms=backlog.oldest_ms,
                stored_per_second=None if rate is None else rate.stored_per_second,
                acknowledged_per_second=None if rate is None else rate.acknowledged_per_second,
                estimated=backlog.estimated,
            )
        )
    return rows
