"""Decides which changes of the node's and of Spark's readiness `headgate up` prints. Pure.

1. The first readiness, and each later one, with the time that it took.
2. Each reason why it is not ready, once. The pauses between starts grow, so such lines become rare.
3. While a start takes long, a line every `REMINDER_SECONDS`.
"""

from typing import Final

from headgate.model.time_text import duration
from metrics.label_values import DrainState

REMINDER_SECONDS: Final = 60.0


class ReadinessReport:
    """What was printed so far. Times are seconds by one clock."""

    def __init__(self, title: str, now_seconds: float) -> None:
        """``title`` begins each line: what is ready or not."""
        self._title = title
        self._was_ready = False
        self._not_ready_since: float | None = now_seconds
        self._printed_reason = ""
        self._printed_at = now_seconds

    def line(self, state: DrainState, reason: str, now_seconds: float) -> str | None:
        """Return the line to print, now that the state is ``state`` because of ``reason``; None: nothing new."""
        if state == "ready":
            return self._ready(now_seconds)
        if self._not_ready_since is None:
            self._not_ready_since = now_seconds
        if state == "degraded" and reason != self._printed_reason:
            self._printed_reason, self._printed_at = reason, now_seconds
            return f"{self._title}: not ready: {reason}"
        if now_seconds - self._printed_at >= REMINDER_SECONDS:
            self._printed_at = now_seconds
            return f"{self._title}: not ready for {duration(now_seconds - self._not_ready_since)}: {reason}"
        return None

    def _ready(self, now_seconds: float) -> str | None:
        if self._not_ready_since is None:
            return None
        took = duration(now_seconds - self._not_ready_since)
        again = " again" if self._was_ready else ""
        self._was_ready, self._not_ready_since, self._printed_reason = True, None, ""
        return f"{self._title}: ready{again} after {took}"
