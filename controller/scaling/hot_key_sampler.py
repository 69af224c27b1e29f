"""Which share of a segment's records has one and the same hash: a sample, taken while records are written.

Splitting cannot part records of one hash. A sample of a few records a second, kept per segment, tells early enough
whether a split would help. Nothing here outlives a reign: a new leader samples for a whole split window before it
decides anything.

Rules:

1. A look at a chunk takes at most `MAX_SAMPLES_PER_CHUNK` records of each segment, from all over the chunk, so that
one batch or one
   busy moment is not taken for the whole.
2. The newest `RETAINED_SAMPLES` samples of a segment count, and nothing is said with fewer than `MIN_SAMPLES`.
3. What is kept is bounded by the segments that take records; sealed ones are forgotten.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from headgate.ledger.record_columns import RecordColumns
from headgate.model.hashing import segment_hash

MAX_SAMPLES_PER_CHUNK = 2
MAX_SCANNED_RECORDS = 256
"""Most records of one chunk that are looked at."""
RETAINED_SAMPLES = 128
MIN_SAMPLES = 32


class HotKeySampler:
    """Samples of every segment of a shard that takes records."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[int]] = {}
        self._next_start = 0

    def sample(self, records: RecordColumns) -> None:
        """Sample the records of one chunk."""
        count = len(records)
        if not count:
            return
        sampled: Counter[tuple[int, int]] = Counter()
        # Another beginning each time: whoever is first in every chunk is not more than his share.
        self._next_start = (self._next_start + 7919) % count
        for step in range(0, count, count // MAX_SCANNED_RECORDS + 1):
            index = (self._next_start + step) % count
            segment_key = (records.topic_id[index], records.segment[index])
            if sampled[segment_key] < MAX_SAMPLES_PER_CHUNK:
                sampled[segment_key] += 1
                self._samples.setdefault(segment_key, deque(maxlen=RETAINED_SAMPLES)).append(
                    segment_hash(records.key[index])
                )

    def hottest_hash_fraction(self, topic_id: int, segment: int) -> float | None:
        """Return the share of the most frequent hash among the samples of ``segment``; None: too few to tell."""
        samples = self._samples.get((topic_id, segment), ())
        if len(samples) < MIN_SAMPLES:
            return None
        return Counter(samples).most_common(1)[0][1] / len(samples)

    def retain(self, segments: Collection[tuple[int, int]]) -> None:
        """Forget every (topic_id, segment) but ``segments``."""
        for segment_key in [segment_key for segment_key in self._samples if segment_key not in segments]:
            del self._samples[segment_key]
