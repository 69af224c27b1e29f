"""The terms of one shard: where each began, and its random id. Together they name the shard's history.

A ledger that was put back to an older state has another history from its next term on. Leader epochs count terms, so
the same number may name a lost term and a present one. The ids, of 63 random bits, differ.

A point of a history is a chunk and the id of its term. Two histories that have a point in common are equal up to it.
Points are exact for any age: the first chunks of all terms are kept anyway (docs/decisions/fencing-after-trim.md), and
an id adds nine bytes to a snapshot.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from headgate.model import entries as e


@dataclass(slots=True)
class Terms:
    """The terms up to some chunk."""

    start_chunks: list[int] = field(default_factory=list)
    """The first chunk of every term, ascending; members permanently."""
    ids: list[int] = field(default_factory=list)
    started_at_ms: int = 0
    """Ledger time of the newest term's first chunk."""

    @property
    def newest_id(self) -> int:
        """Id of the newest term; 0 before the first one."""
        return self.ids[-1] if self.ids else 0

    def begin(self, entry: e.TermStarted, chunk: int, at_ms: int) -> None:
        self.start_chunks.append(chunk)
        self.ids.append(entry.term_id)
        self.started_at_ms = at_ms

    def wrote(self, chunk: int, term_id: int) -> bool:
        """Return whether ``chunk``, which is not after the newest one, is of the term ``term_id``."""
        index = bisect_right(self.start_chunks, chunk) - 1
        return index >= 0 and self.ids[index] == term_id
