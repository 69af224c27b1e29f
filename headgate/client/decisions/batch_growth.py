"""Decide how large a batch of records gets. Pure.

A message costs a leader and its client as much as some 25 records of 1 KB, whatever it carries. So the batches of a
shard get larger, the more of its bytes are unanswered:

1. A batch is full at a quarter of what is unanswered when it opens, and not below ``batch_bytes``. An idle leader gets
   small batches at once, and a busy one gets few large ones.
2. While the window has no space for it, it grows to the largest size.
3. A batch that may exceed ``batch_bytes`` does not leave because it has lingered. It leaves when it is full, or when as
   many bytes were answered since it opened. At a steady rate each takes a quarter of a round trip.
"""

from typing import Final

SHARE: Final = 4
"""What part of the unanswered bytes a batch gets. With 8, the batches of small records hardly grew."""
GROWTH: Final = 16
"""How many times ``batch_bytes`` the largest batch has. A larger one saves little, and stops the loop of a leader."""


class BatchGrowth:
    """The bytes of one shard, and the sizes of batches that follow from them."""

    def __init__(self, batch_bytes: int) -> None:
        self.least_bytes = self.most_bytes = self._wanted_bytes = batch_bytes
        self.offered_bytes = 0
        """The bytes of all batches that were handed to the session."""
        self.answered_bytes = 0
        """Those of them that have an outcome."""

    def limit(self, accepted_bytes: int) -> None:
        """Let no batch of several records exceed ``accepted_bytes``, which the broker accepts."""
        self.least_bytes = min(self._wanted_bytes, accepted_bytes)
        self.most_bytes = min(self._wanted_bytes * GROWTH, accepted_bytes)

    def full_bytes(self) -> int:
        """Return the size at which a batch is full that opens now; rule 1."""
        return max(self.least_bytes, min((self.offered_bytes - self.answered_bytes) // SHARE, self.most_bytes))

    def leaves_at(self, full_bytes: int) -> int:
        """Return the `answered_bytes` from which a batch leaves that opens now and has lingered; rule 3."""
        return 0 if full_bytes <= self.least_bytes else self.answered_bytes + full_bytes
