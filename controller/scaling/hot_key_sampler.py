"""Which share of a segment's records has one and the same hash: a sample, taken while records are written.

Splitting cannot part records of one hash. A sample of a few records a second, kept per segment, tells early enough
whether a split would help. Nothing here outlives a reign: a new leader samples for a whole split window before it
decides anything.

Rules:

1. A look at a chunk takes at most `PER_LOOK` records of each segment, from all over the chunk, so that one batch or one
   busy moment is not taken for the whole.
2. The newest `KEPT` samples of a segment count, and nothing is said with fewer than `FEWEST`.
3. What is kept is bounded by the segments that take records; sealed ones are forgotten.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from headgate.ledger.record_columns import RecordColumns
from headgate.model.hashing import segment_hash

PER_LOOK = 2
LOOKED_AT = 256
"""Most records of one chunk that are looked at."""
KEPT = 128
FEWEST = 32


class HashSamples:
    """Samples of every segment of a shard that takes records."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[int]] = {}
        self._begin = 0

    def look(self, records: RecordColumns) -> None:
        """Sample the records of one chunk."""
        count = len(records)
        if not count:
            return
        taken: Counter[tuple[int, int]] = Counter()
        # Another beginning each time: whoever is first in every chunk is not more than his share.
        self._begin = (self._begin + 7919) % count
        for step in range(0, count, count // LOOKED_AT + 1):
            index = (self._begin + step) % count
            place = (records.topic_id[index], records.segment[index])
            if taken[place] < PER_LOOK:
                taken[place] += 1
                self._samples.setdefault(place, deque(maxlen=KEPT)).append(segment_hash(records.key[index]))

    def hottest_share(self, topic_id: int, segment: int) -> float | None:
        """Return the share of the most frequent hash among the samples of ``segment``; None: too few to tell."""
        samples = self._samples.get((topic_id, segment), ())
        if len(samples) < FEWEST:
            return None
        return Counter(samples).most_common(1)[0][1] / len(samples)

    def keep(self, places: Collection[tuple[int, int]]) -> None:
        """Forget every (topic_id, segment) but ``places``."""
        for place in [place for place in self._samples if place not in places]:
            del self._samples[place]
