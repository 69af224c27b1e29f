"""The rows of `headgate top`: one for each subscription, with rates, sorted and searched. Pure.

1. The rate of acknowledgements is Spark's. Until Spark has counted, it follows from the leaders' own counts in two
   answers of one daemon: what was stored between them, minus what the backlog grew by. It then starts with ``~``.
2. Numbers sort from the largest, unknown ones last; names sort from A. Rows that are equal are sorted by name.
3. ``?`` is not known yet, ``-`` does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headgate.client.cluster.values import ClusterInfo, SubscriptionSummary
from headgate.model.duration import duration
from headgate.protocol.backlog import TRACKED, Outlook, estimate_drain

Order = Literal["lag", "in", "out", "blocked", "name"]
ORDERS: Final[tuple[Order, ...]] = ("lag", "in", "out", "blocked", "name")
WINDOW_SECONDS: Final = 30.0
"""The leaders' rate of arriving records is a mean of this time, so differences are taken over about as much."""
SHORTEST_WINDOW_SECONDS: Final = 1.0
STALE_SECONDS: Final = 5.0
STALE_INTERVALS: Final = 3
UNKNOWN: Final = "?"
NONE: Final = "-"
_EXACT_BELOW: Final = 10_000
_THOUSAND: Final = 1000


@dataclass(frozen=True, slots=True)
class Activity:
    """One subscription at one moment."""

    summary: SubscriptionSummary
    acknowledged_per_second: float | None
    estimated: bool
    """The rate of acknowledgements follows from two answers."""
    outlook: Outlook
    drained_in_seconds: float | None

    @property
    def names(self) -> tuple[str, str]:
        return self.summary.topic, self.summary.subscription


def activities(now: ClusterInfo, earlier: ClusterInfo | None = None) -> list[Activity]:
    """Return what the subscriptions of ``now`` do; ``earlier``: the answer to compare with, if there is one."""
    seconds = 0.0
    before: dict[tuple[str, str], SubscriptionSummary] = {}
    if earlier is not None and earlier.daemon == now.daemon:
        seconds = (now.as_of_ms - earlier.as_of_ms) / 1000
        before = {(each.topic, each.subscription): each for each in earlier.subscriptions}
    return [_activity(each, before.get((each.topic, each.subscription)), seconds) for each in now.subscriptions]


def _activity(now: SubscriptionSummary, before: SubscriptionSummary | None, seconds: float) -> Activity:
    if now.acknowledged_per_second is not None or before is None or seconds < SHORTEST_WINDOW_SECONDS:
        return Activity(now, now.acknowledged_per_second, False, now.outlook, now.drained_in_seconds)
    acknowledged = None
    if None not in (now.backlog_records, before.backlog_records, now.stored_per_second):
        assert now.backlog_records is not None
        assert before.backlog_records is not None
        assert now.stored_per_second is not None
        grown = (now.backlog_records - before.backlog_records) / seconds
        acknowledged = max(0.0, now.stored_per_second - grown)
    tracked = now.type in TRACKED
    outlook, drained = estimate_drain(now.backlog_records, now.stored_per_second, acknowledged, tracked=tracked)
    return Activity(now, acknowledged, acknowledged is not None, outlook, drained)


def in_order(rows: Iterable[Activity], order: Order, *, reverse: bool = False) -> list[Activity]:
    """Return ``rows`` sorted; ``reverse``: the other way round."""
    by_name = sorted(rows, key=lambda each: each.names, reverse=reverse and order == "name")
    if order == "name":
        return by_name
    value = _VALUES[order]
    known = [each for each in by_name if value(each) is not None]
    known.sort(key=lambda each: value(each) or 0, reverse=not reverse)
    return known + [each for each in by_name if value(each) is None]


_VALUES: Final[dict[Order, Callable[[Activity], float | None]]] = {
    "lag": lambda each: each.summary.backlog_records,
    "in": lambda each: each.summary.stored_per_second,
    "out": lambda each: each.acknowledged_per_second,
    "blocked": lambda each: each.summary.blocked_segments,
}


def matching(rows: Iterable[Activity], text: str) -> list[Activity]:
    """Return the rows whose topic or subscription contains ``text``, in any case."""
    wanted = text.casefold()
    return [each for each in rows if wanted in each.names[0].casefold() or wanted in each.names[1].casefold()]


def compared_with(history: Sequence[tuple[float, ClusterInfo]], now_seconds: float) -> ClusterInfo | None:
    """Return the earliest answer in the window; ``history``: (when, answer) in order. None: there is none."""
    return next((answer for at, answer in history if now_seconds - at <= WINDOW_SECONDS), None)


def is_stale(age_seconds: float, interval_seconds: float) -> bool:
    """Return whether data that have not changed for ``age_seconds`` must be marked."""
    return age_seconds > max(STALE_SECONDS, STALE_INTERVALS * interval_seconds)


# Text

COLUMNS: Final = (("consumers", 10), ("in/s", 7), ("acked/s", 8), ("backlog", 9), ("blocked", 8), ("ETA", 9))
"""After topic and subscription: title and width."""


def number_cells(row: Activity) -> tuple[str, ...]:
    """Return the cells of `COLUMNS`."""
    summary = row.summary
    tracked = row.outlook != "not_tracked"
    away = f"+{summary.disconnected_consumers} away" if summary.disconnected_consumers else ""
    return (
        f"{summary.connected_consumers}{away}",
        rate(summary.stored_per_second),
        f"{'~' * row.estimated}{rate(row.acknowledged_per_second)}" if tracked else NONE,
        count(summary.backlog_records) if tracked else NONE,
        str(summary.blocked_segments),
        _eta(row),
    )


def _eta(row: Activity) -> str:
    if row.outlook == "shrinking" and row.drained_in_seconds is not None:
        return duration(row.drained_in_seconds)
    return {"empty": NONE, "not_tracked": NONE, "never": "never"}.get(row.outlook, UNKNOWN)


def count(value: int | None) -> str:
    """Return ``950``, ``9 999``, ``12.3k`` or ``4.56M``."""
    if value is None:
        return UNKNOWN
    return f"{value:,}".replace(",", " ") if value < _EXACT_BELOW else _scaled(value)


def rate(per_second: float | None) -> str:
    """Return ``0.3``, ``12`` or ``1.23k``."""
    if per_second is None:
        return UNKNOWN
    if per_second >= _THOUSAND:
        return _scaled(per_second)
    return f"{per_second:.1f}" if 0 < per_second < 10 else f"{per_second:.0f}"  # noqa: PLR2004


def headline(now: ClusterInfo) -> str:
    """Return the totals in one line."""
    ready = sum(each.state == "ready" for each in now.daemons)
    totals = now.totals
    parts = [
        f"{now.cluster}: {ready} of {totals.daemons} daemons ready",
        f"in {rate(totals.stored_per_second)}/s",
        f"backlog {count(totals.backlog_records)}",
        f"{totals.blocked_segments} blocked",
    ]
    without = sum(each.daemon is None for each in now.shards)
    if without:
        parts.insert(1, f"{without} of {len(now.shards)} shards WITHOUT LEADER")
    return ", ".join(parts)


def time_of_day(at_ms: int) -> str:
    """Return ``22:31:05 UTC``."""
    seconds = at_ms // 1000 % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} UTC"


def _scaled(value: float) -> str:
    for unit in "kMGTP":
        value /= _THOUSAND
        if value < _THOUSAND * 0.9995 or unit == "P":
            break
    return f"{value:.3g}{unit}" if value < _THOUSAND else f"{value:.0f}{unit}"
