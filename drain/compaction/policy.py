"""Decides which chunks to compact, whether a finished run may publish its range, and which may be deleted. Pure.

Which chunks:

* A range never exceeds the watermark of the published result: only counted chunks are compacted, and ranges merged.
  The result says which segments exist. What it does not know would be left out.
* ``fanout`` adjacent ranges of one level become one of the next level, before anything else; after everything else
  if that has failed.
* The next ``chunks`` chunks become one range of level 0, or up to `WIDEST` times as many, if they are old enough and
  small, because each range has a price of its own. Up to the end of one that failed, they are half as many.

Publication. A process may be suspended between any two steps of a run, for longer than anything is kept
(slatedb/slatedb#1822).

1. **Age.** A run publishes within half of the shortest delay after which something that it relies on is deleted:
   its chunks, the ranges that it merges, its own objects.
2. **Chain.** A range is published only if readers then read it, and no range beyond it gets lost: it replaces whole
   ranges of their chain, or continues the chain (`headgate.ledger.objects.ranges_to_read`).
3. **Objects.** Everything that its manifest names exists when it is published.
4. **Withdrawal.** Rule 3 is checked again after the publication, because the request may have been delayed too. A
   manifest without its objects is deleted. One with them stays, however late it is: others may rely on it.
5. **Deletion.** A range is deleted if the chain covers it without it, the ranges of the chain that cover it have been
   published for the delay, and all their objects were read back intact.
6. **Orphans.** A folder is deleted if it is older than any run may be, the manifest of its range, asked for by its
   name, does not name it, and its chunks still exist or belong to published ranges. A listing that lacks the manifest
   proves nothing; nor does a manifest that was lost after its chunks were trimmed (nats-io/nats-server#7556).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.ledger.objects import FANOUT, ChunkRange, compacted_through, ranges_to_read

WIDEST: Final = 8
"""A range of level 0 has at most so many times ``chunks`` chunks."""
ORPHAN_MAX_AGE_SECONDS: Final = 6 * 3600.0
"""Age at which a folder that no manifest names is deleted (rule 6)."""


@dataclass(frozen=True, slots=True)
class PlannedCompaction:
    """A range to write, and its sources."""

    range: ChunkRange
    level: int
    sources: tuple[ChunkRange, ...]
    """The ranges that it replaces; empty: it is written from chunks."""
    is_narrowest: bool = True
    """Whether no range with fewer chunks can be written in its place."""


def next_compactions(
    covering: Sequence[tuple[ChunkRange, int]],
    *,
    watermark: int,
    chunks: int,
    widest: int = WIDEST,
    fanout: int = FANOUT,
    merges_last: bool = False,
) -> list[PlannedCompaction]:
    """Return what may be written next, in this order; ``covering``: range and level of each of `ranges_to_read`."""
    merges: list[PlannedCompaction] = []
    for at in range(len(covering) - fanout + 1):
        group = covering[at : at + fanout]
        if len({level for _, level in group}) == 1 and group[-1][0].last <= watermark:
            sources = tuple(each for each, _ in group)
            merges = [PlannedCompaction(ChunkRange(sources[0].first, sources[-1].last), group[0][1] + 1, sources)]
            break
    last = compacted_through([each for each, _ in covering])
    most = min(widest, (watermark - last) // chunks)
    widest_first = range(most, 0, -1)
    new = [PlannedCompaction(ChunkRange(last + 1, last + n * chunks), 0, (), n == 1) for n in widest_first]
    return new + merges if merges_last else merges or new


def max_run_age_seconds(delete_after_seconds: float) -> float:
    """Return how long after its start a run may publish (rule 1). Chunks and replaced ranges have the same delay."""
    return min(delete_after_seconds, ORPHAN_MAX_AGE_SECONDS) / 2


def refusal(
    written: ChunkRange, published: Iterable[ChunkRange], *, age_seconds: float, max_age_seconds: float
) -> str | None:
    """Return why the range ``written`` cannot be published; None if it can (rules 1 and 2)."""
    if age_seconds > max_age_seconds:
        return (
            f"the run began {age_seconds:.0f} s ago, and must end within {max_age_seconds:g} s, because what it has "
            "read may be deleted later: it was suspended, or compaction.delete_delay_seconds is too short"
        )
    others = [each for each in published if each != written]
    chain = ranges_to_read([*others, written])
    if written not in chain:
        return f"the ranges that were published meanwhile reach chunk {compacted_through(chain)} without it"
    return None


def replaced(published: Sequence[ChunkRange]) -> list[tuple[ChunkRange, list[ChunkRange]]]:
    """Return the ranges that readers do not need, each with those of the chain that cover its chunks (rule 5)."""
    chain = ranges_to_read(published)
    return [
        (each, [wider for wider in chain if wider.first <= each.last and each.first <= wider.last])
        for each in published
        if each not in chain and each.last <= compacted_through(chain)
    ]
