"""When to report an event that repeats: once in an interval for each cause, or ever less often. Pure."""

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


class ConditionReport:
    """When to report a condition that lasts: at once when it begins or changes, then after growing intervals."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        """``first_seconds``: from the first report to the second. Each interval is twice the one before."""
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._condition: Hashable = None
        self._next_at = 0.0
        self._interval_seconds = first_seconds

    def is_due(self, now: float, condition: Hashable) -> bool:
        """Return whether to report ``condition`` at ``now``; None: it has ended."""
        if condition != self._condition:
            self._condition, self._interval_seconds = condition, self._first_seconds
        elif condition is None or now < self._next_at:
            return False
        self._next_at = now + self._interval_seconds
        self._interval_seconds = min(2 * self._interval_seconds, self._longest_seconds)
        return condition is not None
