"""Decides up to which number a shard's old chunks can be deleted. Pure.

A chunk can be deleted when none of these needs it:

1. Restore. It is below the oldest retained snapshot, so every retained snapshot keeps the chunks
   after it, and a damaged snapshot costs only time. The chunk of that snapshot itself is kept as
   evidence that the snapshot is not ahead of the ledger.
2. Readers, and a drain service that counts from the first chunk. A manifest has covered the chunk
   for the whole delay. A manifest covers only counted chunks. The last chunk of such a range is
   kept as evidence for the count.
3. Fencing. It is not the first chunk of a term. Those are kept permanently, because a deposed
   leader's next number must stay taken (slatedb/slatedb#352).

The decision is an entry (`LedgerTrimmed`) before any chunk is deleted. So a trimmed beginning can
be distinguished from a loss, and the next leader can finish the deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.ledger.chunk_ranges import ChunkRange, compacted_through, ranges_to_read


def trim_point(
    snapshots: Sequence[int],
    manifests: Iterable[tuple[ChunkRange, int]],
    *,
    now_ms: int,
    delay_ms: float,
) -> int:
    """Return the number below which chunks can be deleted; 1 if none can.

    Args:
        snapshots: chunk numbers of the retained snapshots, ascending; each is readable.
        manifests: range and creation time of every existing manifest, replaced ones included.
        now_ms: wall clock.
        delay_ms: how long a manifest must have existed.

    """
    visible = [chunks for chunks, written_at_ms in manifests if now_ms - written_at_ms >= delay_ms]
    if not snapshots:
        return 1
    return max(1, min(snapshots[0], compacted_through(ranges_to_read(visible))))


def deletable(numbers: Iterable[int], *, below: int, term_start_chunks: Iterable[int]) -> list[int]:
    """Return the chunks among ``numbers`` that can be deleted, oldest first."""
    kept = set(term_start_chunks)
    return sorted(number for number in numbers if number < below and number not in kept)
