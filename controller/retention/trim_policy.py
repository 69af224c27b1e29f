"""Decides up to which number a shard's old chunks can be deleted. Pure.

A chunk can be deleted when none of these needs it:

1. Restore: it is below the oldest retained snapshot, so a damaged newer one costs only time. That
   snapshot's own chunk is kept, as evidence that the snapshot is not ahead of the ledger.
2. Readers: a manifest, which covers only counted chunks, has covered it for the whole delay. The
   last chunk of such a range is kept as evidence for the count.
3. Fencing: it is not the first chunk of a term. A deposed leader's next number must stay taken
   (slatedb/slatedb#352).

`LedgerTrimmed` is durable before any chunk is deleted, so a trimmed beginning can be distinguished
from a loss.
"""

from collections.abc import Iterable, Sequence

from headgate.ledger.paths import ChunkRange, compacted_through, ranges_to_read


def trim_point(snapshots: Sequence[int], manifests: Iterable[tuple[ChunkRange, float]], *, delay_ms: float) -> int:
    """Return the number below which chunks can be deleted; 1 if none can.

    ``snapshots``: numbers of the readable ones, ascending. ``manifests``: the range and age in
    milliseconds of each one that exists, replaced ones included.
    """
    visible = [chunks for chunks, age_ms in manifests if age_ms >= delay_ms]
    return 1 if not snapshots else max(1, min(snapshots[0], compacted_through(ranges_to_read(visible))))


def deletable(numbers: Iterable[int], *, below: int, term_start_chunks: Iterable[int]) -> list[int]:
    """Return the chunks among ``numbers`` that can be deleted, oldest first."""
    kept = set(term_start_chunks)
    return sorted(number for number in numbers if number < below and number not in kept)
