"""How quickly the segments that hold others back are acknowledged: positions over a short window, as a rate.

Times and positions come in as values. Only what blocks somebody is followed, so a subscription in which nothing waits
costs nothing. A position that falls (a seek) begins a new window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""Long enough to smooth batches of acknowledgements, short enough to see a consumer stop."""
SAMPLE_INTERVAL_SECONDS: Final = 2.0
"""Between two samples, and the least that a rate is measured over."""


class DrainRate:
    """The positions of the last `WINDOW_SECONDS`, by segment."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, int]]] = {}

    def add_sample(self, now_seconds: float, positions: Mapping[int, int]) -> None:
        """Take the positions of all segments that block others now; what is missing is forgotten."""
        for segment in self._samples.keys() - positions.keys():
            del self._samples[segment]
        for segment, position in positions.items():
            samples = self._samples.setdefault(segment, deque())
            if samples and position < samples[-1][1]:
                samples.clear()
            if not samples or now_seconds - samples[-1][0] >= SAMPLE_INTERVAL_SECONDS:
                samples.append((now_seconds, position))
            while now_seconds - samples[0][0] > WINDOW_SECONDS:
                samples.popleft()

    def rates(self) -> dict[int, float]:
        """Return segment → records acknowledged a second, for those that were followed long enough."""
        return {
            segment: (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
            for segment, samples in self._samples.items()
            if len(samples) > 1
        }
