"""Estimates the fraction of a segment's records that has the most frequent key hash. Pure.

Splitting cannot separate records of one hash. Samples start empty in each term.

1. A chunk gives at most `MAX_SAMPLES_PER_CHUNK` records per segment, the first ones after a place that
   differs from chunk to chunk, so that one batch does not count for the whole.
2. Only the newest `RETAINED_SAMPLES` samples of a segment count. Below `MIN_SAMPLES` the result is
   unknown.
3. Samples of sealed segments are dropped, unless a child of the same range continues them.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence

from headgate.ledger.chunk import RecordColumns
from headgate.model.hashing import segment_hash

MAX_SAMPLES_PER_CHUNK = 2
MAX_SCANNED_RECORDS = 256
"""Records of one chunk that are read at most."""
RETAINED_SAMPLES = 128
MIN_SAMPLES = 32


class HotKeySampler:
    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[int]] = {}
        self._next_start = 0

    def sample(self, records: RecordColumns) -> None:
        count = len(records)
        if not count:
            return
        sampled: Counter[tuple[int, int]] = Counter()
        # A different start each time, so that a segment that is first in every chunk is not
        # over-represented.
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
        """Return the fraction of the most frequent hash in the samples of ``segment``; None: too few samples."""
        samples = self._samples.get((topic_id, segment), ())
        return None if len(samples) < MIN_SAMPLES else Counter(samples).most_common(1)[0][1] / len(samples)

    def roll(self, topic_id: int, parents: Sequence[int], child: int) -> None:
        """Count the samples of the sealed ``parents`` for ``child``, which has their range."""
        for parent in parents:
            if (samples := self._samples.pop((topic_id, parent), None)) is not None:
                samples.extend(self._samples.get((topic_id, child), ()))
                self._samples[topic_id, child] = samples

    def retain(self, segments: Collection[tuple[int, int]]) -> None:
        """Drop the samples of every (topic id, segment) that is not in ``segments``."""
        for segment_key in [segment_key for segment_key in self._samples if segment_key not in segments]:
            del self._samples[segment_key]
