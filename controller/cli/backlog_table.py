"""How backlogs look in a terminal: rows of text, a trend, and a line of bars while somebody watches.

Pure: values in, text out. What is not known yet is ``?``. What there is none of is ``-``, and so is what nobody can
tell of a topic that is stored somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.cli.segment_tree import format_bytes
from coordinator.reporting.explanation import duration
from headgate.client.admin_values import BacklogInfo, SegmentBacklogInfo
from headgate.protocol.backlog import Outlook, estimate_drain

COLUMNS: Final = ("topic", "subscription", "type", "records", "bytes", "oldest", "in/s", "acked/s", "drained in")
NUMBERS: Final = ("segment", "records", "bytes", "oldest", "in/s", "acked/s", "drained in")
BARS: Final = "▁▂▃▄▅▆▇█"
SPARKS: Final = 20
"""Points of the line of bars."""
STALE_SECONDS: Final = 5.0
"""Numbers that are older say so."""
NOTES: Final = 5
"""External topics of which it is said why something is not known."""

_OUTLOOKS: Final[dict[Outlook, str]] = {"empty": "-", "never": "never", "unknown": "?", "not_tracked": "-"}


def subscription_row(backlog: BacklogInfo) -> list[str]:
    """Return the cells of `COLUMNS` for a whole subscription."""
    kind = "?" if backlog.subscription_type is None else backlog.subscription_type.lower()
    outlook = backlog.outlook, backlog.drained_in_seconds
    return [backlog.topic, backlog.subscription, kind, *_cells(backlog, backlog, *outlook)]


def segment_row(part: SegmentBacklogInfo, whole: BacklogInfo) -> list[str]:
    """Return the same cells for one of its segments."""
    tracked = whole.outlook != "not_tracked"
    outlook = estimate_drain(part.records, part.stored_per_second, part.acknowledged_per_second, tracked=tracked)
    name = f"  segment {part.segment}" + ("" if part.label is None else f" {part.label}")
    return ["", name, "sealed" if part.sealed else "active", *_cells(part, whole, *outlook)]


def _cells(
    backlog: BacklogInfo | SegmentBacklogInfo, whole: BacklogInfo, outlook: Outlook, seconds: float | None
) -> list[str]:
    if backlog.records is None:
        return ["not tracked" if outlook == "not_tracked" else "-", "-", "-", "-", "-", "-"]
    oldest = "-" if backlog.records == 0 or (whole.external and whole.counted_by == "spark") else "?"
    if backlog.oldest_ms is not None:
        oldest = duration(max(0, whole.as_of_ms - backlog.oldest_ms) / 1000)
    return [
        f"{backlog.records:,}".replace(",", " "),
        "-" if backlog.size_bytes is None else format_bytes(backlog.size_bytes),
        oldest,
        _rate(backlog.stored_per_second),
        _rate(backlog.acknowledged_per_second),
        duration(seconds) if outlook == "shrinking" and seconds is not None else _OUTLOOKS.get(outlook, "?"),
    ]


def counted_lines(backlogs: Sequence[BacklogInfo], now_ms: int) -> list[str]:
    """Return what has to be said of how these were counted; nothing: all by Spark, just now."""
    by_leader = sum(_needs_spark(backlog) for backlog in backlogs)
    age_seconds = max((now_ms - each.as_of_ms for each in backlogs), default=0) / 1000
    lines: list[str] = []
    if by_leader:
        lines.append(
            f"{by_leader} of {len(backlogs)} counted by the leader: Spark has not answered, "
            "so their ages and rates are not known"
        )
    elif age_seconds > STALE_SECONDS:
        lines.append(f"as of {duration(age_seconds)} ago")
    notes = sorted({(each.topic, each.failing, each.unknown_reason) for each in backlogs if each.unknown_reason})
    for topic, failing, reason in notes[:NOTES]:
        lines.append(f"{topic} {'could not be counted' if failing else 'is not known in full'}: {reason}")
    if len(notes) > NOTES:
        lines.append(f"and {len(notes) - NOTES} more; --json has all reasons")
    return lines


def _needs_spark(backlog: BacklogInfo) -> bool:
    """Return whether the leader has counted what Spark would know more about; of an external topic it says why not."""
    said = bool(backlog.unknown_reason) or (backlog.external and backlog.records == 0)
    return backlog.counted_by == "leader" and not said


def trend(before: int | None, now: int | None) -> str:
    """Return ▲, ▼ or = for a backlog that was ``before`` and is ``now``; empty where one of them is not known."""
    if before is None or now is None:
        return ""
    return "=" if now == before else "▲" if now > before else "▼"


def outlook_trend(backlog: BacklogInfo | SegmentBacklogInfo) -> str:
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
