"""Measures how fast the blocking segments are acknowledged, over a short window of counts. Pure.

A subscription without blocked segments costs nothing. A falling count (a seek) starts a new window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""Long enough to smooth acknowledgement batches, short enough to notice a stopped consumer."""
SAMPLE_INTERVAL_SECONDS: Final = 2.0
"""Time between two samples, and the shortest time over which a rate is measured."""


class DrainRate:
    """Acknowledged records of the last `WINDOW_SECONDS` by segment."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._due_at = 0.0

    def is_due(self, now_seconds: float) -> bool:
        """Return whether it is time for a sample."""
        return now_seconds >= self._due_at

    def add_sample(self, now_seconds: float, acknowledged: Mapping[int, int]) -> None:
        """Add the acknowledged records of all blocking segments. Segments that are missing are dropped."""
        self._due_at = now_seconds + SAMPLE_INTERVAL_SECONDS
        for segment in self._samples.keys() - acknowledged.keys():
            del self._samples[segment]
        for segment, records in acknowledged.items():
            samples = self._samples.setdefault(segment, deque())
            if samples and records < samples[-1][1]:
                samples.clear()
            if not samples or now_seconds - samples[-1][0] >= SAMPLE_INTERVAL_SECONDS:
                samples.append((now_seconds, records))
            while now_seconds - samples[0][0] > WINDOW_SECONDS:
                samples.popleft()

    def rates(self) -> dict[int, float]:
        """Return segment → acknowledged records per second, for segments sampled long enough."""
        return {
            segment: (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
            for segment, samples in self._samples.items()
            if len(samples) > 1
        }
