"""Runs of records for the program, bounded in records."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.delivery_lease import DeliveryLease
from headgate.client.consuming.held_segment import HeldSegment

QUEUE_RECORDS: Final = 1000
"""Most records that are queued for the program, over all segments."""


@dataclass(slots=True, eq=False)
class Run:
    holding: HeldSegment
    records: list[ConsumedRecord]
    taken: int = 0


class RecordQueue:
    def __init__(self) -> None:
        self.lease = DeliveryLease()
        """Without a valid one, nothing is taken."""
        self.runs: deque[Run] = deque()
        self.records = 0
        """Those that are read, and that the program has not taken."""
        self._entrance = asyncio.Lock()
        """Held by the reader that waits for space; others follow in their order."""
        self._awaited = 0
        """How many records it has; 0: no reader waits."""
        self._has_space = asyncio.Event()
        self._changed = asyncio.Event()

    async def put(self, holding: HeldSegment, records: list[ConsumedRecord]) -> None:
        async with self._entrance:
            while self.records + len(records) > QUEUE_RECORDS:
                self._awaited = len(records)
                self._has_space.clear()
                await self._has_space.wait()
            self._awaited = 0
            self.runs.append(Run(holding, records))
            self.records += len(records)
            self._changed.set()

    def take(self, max_records: int) -> list[ConsumedRecord]:
        """Remove records from the first run, at most so many."""
        run = self.runs[0]
        records = run.records[run.taken : run.taken + max_records]
        count = len(records)
        run.taken += count
        if run.taken == len(run.records):
            self.runs.popleft()
        self.records -= count
        if self._awaited and self.records + self._awaited <= QUEUE_RECORDS:
            self._has_space.set()
        return records

    async def changed(self) -> None:
        """Wait until there is a record to take, or the consumer should check whether to stop."""
        if not self.runs or not self.lease.is_valid:
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """End the waits of `changed`."""
        self._changed.set()
