"""What one consumer knows of the history of its shard: chunks, and the ids of the terms that wrote them. Pure.

A ledger that is put back to an older state under a running consumer has another history. Its chunks, offsets,
grants and leader epochs repeat the numbers of lost ones, so the numbers prove nothing. A point (chunk, term id)
does: two histories that have it in common are equal up to that chunk.

1. Every chunk that is delivered from is a point, and so is the head that a reply of a leader states.
2. Points are kept until a leader confirms them: its reply to a request that carried them proves that they are of
   its history. The newest point alone is not enough. After the ledger was put back, a reader may reach a chunk of
   the present history before the consumer asks.
3. A chunk names the term of the chunk before. So a point includes the one before it, and a reader that reads chunk
   after chunk adds one point, however many terms it reads.
"""

from collections.abc import Iterable

Point = tuple[int, int]
"""(chunk, id of the term that wrote it)."""


class KnownHistory:
    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._newest: dict[int, int] = {}
        """Term id → its newest chunk that is known."""
        for chunk, term_id in points:
            self.add(chunk, term_id)

    @property
    def points(self) -> list[Point]:
        """What a leader has to confirm, rising."""
        return sorted((chunk, term_id) for term_id, chunk in self._newest.items())

    @property
    def newest(self) -> int:
        """The newest chunk that is known; 0: none is."""
        return max(self._newest.values(), default=0)

    def add(self, chunk: int, term_id: int, previous_term_id: int | None = None) -> None:
        """Add a point. ``previous_term_id``: the term of the chunk before, if it is known."""
        if chunk > self._newest.get(term_id, 0):
            self._newest[term_id] = chunk
        if previous_term_id not in (None, term_id) and self._newest.get(previous_term_id, chunk) < chunk:
            del self._newest[previous_term_id]

    def confirmed(self, points: Iterable[Point], chunk: int, term_id: int) -> None:
        """Record that the leader whose term ``term_id`` has reached ``chunk`` confirms ``points``."""
        for known, of_term in points:
            if self._newest.get(of_term) == known:
                del self._newest[of_term]
        self.add(chunk, term_id)
