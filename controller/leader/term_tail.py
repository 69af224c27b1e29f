"""Follows the terms of a ledger without its state, for a shard that a daemon does not keep in memory.

It reads every chunk and keeps nothing but the newest number and term. A chunk that was trimmed before it was read is
noticed by a listing only; `lost` says so, and the whole state must be read once.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.ledger.ledger import Ledger
from headgate.model import entries as e


@dataclass(slots=True)
class TermTail:
    """The end of a ledger, as far as it was read."""

    chunk: int
    leader_epoch: int
    leader_instance: str

    async def read(self, ledger: Ledger) -> int:
        """Read new chunks; return how many. Raises StoreUnavailableError or LedgerError."""
        before = self.chunk
        while (found := await ledger.read_or_none(self.chunk + 1)) is not None:
            self.chunk = found.header.number
            for entry in found.entries:
                if isinstance(entry, e.TermStarted):
                    self.leader_epoch, self.leader_instance = entry.leader_epoch, entry.instance
        return self.chunk - before

    async def lost(self, ledger: Ledger) -> bool:
        """Return whether later chunks exist although the next one does not. Raises StoreUnavailableError."""
        return bool(await ledger.numbers(after=self.chunk))
