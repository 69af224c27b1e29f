"""How far a shard's old chunks may be deleted: a decision over values.

A chunk may go when nobody needs it any more:

1. A restore: it is below the oldest snapshot that is kept, so that every kept snapshot still has its tail, and one
   that is damaged costs nothing but time. The chunk of that snapshot itself stays, as proof that the snapshot is not
   ahead.
2. Whoever reads records, and whoever counts from the first chunk: a manifest has spoken for it for the whole delay,
   and a manifest never speaks for a chunk that was not counted. The last chunk of such a range stays, as the count's
   own proof.
3. The fence: it is not the first chunk of a reign. That one stays for ever, because a deposed leader's next number must
   stay taken (slatedb/slatedb#352).

What has been decided is an entry (`LedgerTrimmed`) before anything is deleted, so that a beginning that is missing can
be told from a loss, and so that whoever leads next finishes the deleting.
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
    """Return the number below which chunks may be deleted; 1 if none may.

    Args:
        snapshots: chunk numbers of the kept snapshots, rising; each can be read.
        manifests: range and writing time of every manifest that is there, replaced ones too.
        now_ms: wall clock.
        delay_ms: how long a range must have been visible.

    """
    visible = [chunks for chunks, written_at_ms in manifests if now_ms - written_at_ms >= delay_ms]
    if not snapshots:
        return 1
    return max(1, min(snapshots[0], compacted_through(ranges_to_read(visible))))


def deletable(numbers: Iterable[int], *, below: int, term_start_chunks: Iterable[int]) -> list[int]:
    """Return those of ``numbers`` that are to be deleted, oldest first."""
    kept = set(term_start_chunks)
    return sorted(number for number in numbers if number < below and number not in kept)
