"""Follows the terms of a ledger without its state, for a shard that a daemon does not keep in memory.

It starts at the end of the ledger, with the newest term. Then it reads the header of every chunk, and keeps nothing but
the newest number and term. Only the first chunk of a term is decoded: each daemon follows all shards of the cluster, so
every daemon does this for every chunk. A chunk that was
trimmed before it was read is noticed by a listing only; `lost` says so, and the whole state must be read once.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.leadership.policy import safety
from headgate.ledger.ledger import Ledger, if_exists
from headgate.model import entries as e
from shard.state.shard_state import ShardState


@dataclass(slots=True)
class TermTail:
    """The end of a ledger, as far as it was read."""

    chunk: int
    leader_epoch: int
    leader_instance: str

    @classmethod
    def of(cls, state: ShardState) -> TermTail:
        return cls(state.chunk, state.term.leader_epoch, state.term.instance)

    @classmethod
    async def at_end(cls, ledger: Ledger) -> TermTail | None:
        """Return the end of a ledger after a few reads; None: chunks were trimmed meanwhile. Raises like `read`."""
        numbers = await ledger.numbers()
        newest = await if_exists(ledger.header, numbers[-1]) if numbers else None
        if newest is None:
            return None if numbers else cls(0, 0, "")
        low, high = 0, len(numbers) - 1
        while low < high:  # Epochs rise with the numbers: search the first chunk of the newest term.
            middle = (low + high) // 2
            header = await if_exists(ledger.header, numbers[middle])
            if header is None:
                return None
            low, high = (low, middle) if header.leader_epoch == newest.leader_epoch else (middle + 1, high)
        tail = cls(newest.number, 0, "")
        await tail._note_term(ledger, numbers[low])
        return tail

    async def read(self, ledger: Ledger) -> int:
        """Read new chunks; return how many. Raises StoreUnavailableError or LedgerError."""
        before = self.chunk
        while (header := await if_exists(ledger.header, self.chunk + 1)) is not None:
            if header.leader_epoch > self.leader_epoch:
                await self._note_term(ledger, header.number)
            self.chunk = header.number
        return self.chunk - before

    async def lost(self, ledger: Ledger) -> bool:
        """Return whether later chunks exist although the next one does not. Raises StoreUnavailableError."""
        return not safety.is_end(self.chunk, await ledger.numbers(after=self.chunk))

    async def _note_term(self, ledger: Ledger, number: int) -> None:
        # The first chunk of a term is never trimmed, so it is still there.
        for entry in (await ledger.read(number)).entries:
            if isinstance(entry, e.TermStarted):
                self.leader_epoch, self.leader_instance = entry.leader_epoch, entry.instance
