"""When to report an event that repeats: once in an interval for each cause. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class ReportLimit:
    """The causes that were reported in the last ``interval_seconds``.

    Their number is limited, because an attacker may have many addresses. At ``max_causes`` all are forgotten,
    and are reported once more.
    """

    def __init__(self, interval_seconds: float, max_causes: int = 1) -> None:
        self._interval_seconds = interval_seconds
        self._max_causes = max_causes
        self._reported_at: dict[Hashable, float] = {}

    def is_due(self, now: float, cause: Hashable = None) -> bool:
        """Return whether to report ``cause`` at ``now``, in seconds of a steady clock; if so, it counts as reported."""
        reported_at = self._reported_at.get(cause)
        if reported_at is not None and now - reported_at < self._interval_seconds:
            return False
        if len(self._reported_at) >= self._max_causes:
            self._reported_at.clear()
        self._reported_at[cause] = now
        return True
