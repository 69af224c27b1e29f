"""How backlogs look in a terminal: rows of text, a trend, and a line of bars while somebody watches.

Pure: values in, text out. What is not known is ``?``, what there is none of ``-``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.cli_graph import byte_count
from coordinator.explanation import duration
from headgate.backlog import Outlook, SegmentBacklog, SubscriptionBacklog, outlook_of

COLUMNS: Final = ("topic", "subscription", "type", "records", "bytes", "oldest", "in/s", "acked/s", "drained in")
NUMBERS: Final = ("segment", "records", "bytes", "oldest", "in/s", "acked/s", "drained in")
BARS: Final = "▁▂▃▄▅▆▇█"
SPARKS: Final = 20
"""Points of the line of bars."""
STALE_SECONDS: Final = 5.0
"""Numbers that are older say so."""

_OUTLOOKS: Final[dict[Outlook, str]] = {"empty": "-", "never": "never", "unknown": "?", "not_tracked": "-"}


def subscription_row(backlog: SubscriptionBacklog) -> list[str]:
    """Return the cells of `COLUMNS` for a whole subscription."""
    kind = "?" if backlog.subscription_type is None else backlog.subscription_type.lower()
    outlook = backlog.outlook, backlog.drained_in_seconds
    return [backlog.topic, backlog.subscription, kind, *_cells(backlog, backlog.as_of_ms, *outlook)]


def segment_row(part: SegmentBacklog, as_of_ms: int) -> list[str]:
    """Return the same cells for one of its segments."""
    outlook = outlook_of(part.records, part.stored_per_second, part.acknowledged_per_second)
    return ["", f"  segment {part.segment}", "sealed" if part.sealed else "active", *_cells(part, as_of_ms, *outlook)]


def _cells(
    backlog: SubscriptionBacklog | SegmentBacklog, as_of_ms: int, outlook: Outlook, seconds: float | None
) -> list[str]:
    if backlog.records is None:
        return ["not tracked", "-", "-", "-", "-", "-"]
    oldest = "-" if backlog.records == 0 else "?"
    if backlog.oldest_ms is not None:
        oldest = duration(max(0, as_of_ms - backlog.oldest_ms) / 1000)
    return [
        f"{backlog.records:,}".replace(",", " "),
        byte_count(backlog.size_bytes or 0),
        oldest,
        _rate(backlog.stored_per_second),
        _rate(backlog.acknowledged_per_second),
        duration(seconds) if outlook == "shrinking" and seconds is not None else _OUTLOOKS.get(outlook, "?"),
    ]


def counted_line(backlogs: Sequence[SubscriptionBacklog], now_ms: int) -> str | None:
    """Return what has to be said of how these were counted; None: all by Spark, just now."""
    by_leader = sum(backlog.counted_by == "leader" for backlog in backlogs)
    age_seconds = max((now_ms - each.as_of_ms for each in backlogs), default=0) / 1000
    if by_leader:
        return (
            f"{by_leader} of {len(backlogs)} counted by the leader: Spark has not answered, "
            "so their ages and rates are not known"
        )
    return f"as of {duration(age_seconds)} ago" if age_seconds > STALE_SECONDS else None


def trend(before: int | None, now: int | None) -> str:
    """Return ▲, ▼ or = for a backlog that was ``before`` and is ``now``; empty where one of them is not known."""
    if before is None or now is None:
        return ""
    return "=" if now == before else "▲" if now > before else "▼"


def outlook_trend(backlog: SubscriptionBacklog | SegmentBacklog) -> str:
    """Return the trend by the rates alone, for whoever looks only once."""
    stored, acknowledged = backlog.stored_per_second, backlog.acknowledged_per_second
    if stored is None or acknowledged is None:
        return ""
    return "=" if stored == acknowledged else "▲" if stored > acknowledged else "▼"


def sparkline(values: Sequence[int]) -> str:
    """Return the last `SPARKS` of ``values`` as bars; 0 is always the lowest."""
    shown = values[-SPARKS:]
    highest = max(shown, default=0)
    return "".join(BARS[0 if highest == 0 else value * (len(BARS) - 1) // highest] for value in shown)


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "?"
    return f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}".replace(",", " ")  # noqa: PLR2004
