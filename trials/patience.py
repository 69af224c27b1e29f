"""Decides how long a run waits for deliveries. Pure.

1. A run waits as long as anything that it observes changes: stored, received and acknowledged records, holders.
2. It gives up after a time without any change. What is missing then is *not delivered yet*, which is no violation.
"""

from typing import Final

STALLED_SECONDS: Final = 300.0
"""Without any change for this long, a run has stalled. A start of Spark on a busy machine takes a fifth of it."""


class Patience:
    """Watches whether anything changes."""

    def __init__(self, now: float, stalled_seconds: float = STALLED_SECONDS) -> None:
        self._stalled_seconds = stalled_seconds
        self._changed_at = now
        self._observed: object = None

    def ended(self, now: float, observed: object) -> bool:
        """Record what is observed at ``now`` (seconds of any steady clock); return whether the run has stalled."""
        if observed != self._observed:
            self._observed, self._changed_at = observed, now
        return now - self._changed_at >= self._stalled_seconds
