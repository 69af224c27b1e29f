"""Decide which records a handler gets next, and what can be acknowledged. Pure.

1. Records of one key are handled one after the other, in the order in which they were added.
2. At most ``concurrency`` calls of the handler run. A batch that waits for its retry is no call, but its keys wait.
3. STREAM and CHECKPOINT: the low-water mark of a holding, (segment, generation), is its first record that is not
   handled. Everything below can be acknowledged. QUEUE: each record can be, once it is handled.
4. A segment gets no further records while it uses its share of the look-ahead.
5. A record that waits for others of its batch waits for ``max_wait_seconds`` at most.
6. When a segment is revoked, records that were not begun are given back. With a low-water mark, those below a record
   that was begun are handled too: the next holder would repeat everything above the mark.
7. When a holding has ended, what is handled of it has no effect any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from headgate.client.decisions.held_segments import HeldKey
from headgate.client.processing.policies import BatchPolicy, LookAhead

if TYPE_CHECKING:
    from headgate.client.consumed_record import ConsumedRecord


@dataclass(slots=True, eq=False)
class _Holding:
    key: HeldKey
    unpassed: deque[Work] = field(default_factory=deque)
    """STREAM and CHECKPOINT: what is not below the low-water mark, in order."""
    ahead_records: int = 0
    """Records that are not below the low-water mark; QUEUE: that are not handled."""
    unhandled_bytes: int = 0
    last_begun: int = -1
    """The highest offset of a record that was begun."""
    paused: bool = False
    ended: bool = False


@dataclass(slots=True, eq=False)
class Work:
    record: ConsumedRecord
    holding: _Holding
    size_bytes: int
    begun: bool = False
    done: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    works: list[Work]
    failures: int = 0

    @property
    def records(self) -> list[ConsumedRecord]:
        """The records, those of one key in order, without those of holdings that have ended."""
        return [work.record for work in self.works if not work.holding.ended]


class Schedule:
    def __init__(self, concurrency: int, batch: BatchPolicy, look_ahead: LookAhead, *, cumulative: bool) -> None:
        """``cumulative``: whether acknowledgements follow low-water marks (rule 3)."""
        self.unfinished = 0
        """Records that are neither handled, given back nor abandoned."""
        self.hurried = False
        """Whether batches start without waiting for more records."""
        self._concurrency = concurrency
        self._batch = batch
        self._look_ahead = look_ahead
        self._cumulative = cumulative
        self._running = 0
        self._held = 1
        """Segments that have a share of the look-ahead."""
        self._holdings: dict[HeldKey, _Holding] = {}
        self._waiting: dict[bytes, deque[Work]] = {}
        """Key → its records that were not begun. It is there while one of them is, or the key is busy."""
        self._busy: set[bytes] = set()
        self._ready: OrderedDict[bytes, float] = OrderedDict()
        """Keys that have records and are not busy, and since when, in this order."""
        self._ready_records = 0
        self._retries: deque[Batch] = deque()
        self._resumed: list[HeldKey] = []

    @property
    def is_free(self) -> bool:
        """Whether fewer calls run than may."""
        return self._running < self._concurrency

    # Records

    def add(self, record: ConsumedRecord, now: float, held: int) -> HeldKey | None:
        """Add a record. Return its holding if that gets no further records; ``held`` segments have a share."""
        holding_key, key = (record.segment, record.generation), record.key
        holding = self._holdings.get(holding_key)
        if holding is None:
            holding = self._holdings[holding_key] = _Holding(holding_key)
        work = Work(record, holding, len(key) + len(record.value) + sum(map(len, chain.from_iterable(record.headers))))
        holding.ahead_records += 1
        holding.unhandled_bytes += work.size_bytes
        if self._passes(work):
            holding.unpassed.append(work)
        self.unfinished += 1
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque((work,))
            self._ready[key] = now
            self._ready_records += 1
        else:
            waiting.append(work)
            self._ready_records += key not in self._busy
        self._held = held
        if holding.paused or not self._uses(holding, 1):
            return None
        holding.paused = True
        return holding_key

    def _passes(self, work: Work) -> bool:
        """Return whether a record counts for the low-water mark. One that was parked and is resumed does not."""
        return self._cumulative and not work.record.parked_number

    def _uses(self, holding: _Holding, part: float) -> bool:
        """Return whether a holding uses ``part`` of its share, or more."""
        limit, share = self._look_ahead, part / self._held
        return holding.ahead_records >= limit.max_records * share or holding.unhandled_bytes >= limit.max_bytes * share

    def take_resumed(self) -> list[HeldKey]:
        """Return the holdings that get records again since the last call."""
        resumed, self._resumed = self._resumed, []
        return resumed

    # Calls of the handler

    def start(self, now: float) -> Batch | None:
        if self._running >= self._concurrency or not (self._ready or self._retries):
            return None
        if self._retries:
            self._running += 1
            return self._retries.popleft()
        limit = self._batch.max_records
        if self._ready_records < limit and not self.hurried and now < self._due_at:
            return None
        works: list[Work] = []
        while self._ready and len(works) < limit:
            key, _ = self._ready.popitem(last=False)
            self._busy.add(key)
            waiting = self._waiting[key]
            self._ready_records -= len(waiting)
            while waiting and len(works) < limit:
                works.append(work := waiting.popleft())
                work.begun = True
                work.holding.last_begun = max(work.holding.last_begun, work.record.offset)
        self._running += 1
        return Batch(works)

    @property
    def starts_at(self) -> float | None:
        """When an incomplete batch is due; None: nothing waits for others."""
        return self._due_at if self._ready and self._running < self._concurrency else None

    @property
    def _due_at(self) -> float:
        return next(iter(self._ready.values())) + self._batch.max_wait_seconds

    def failed(self, batch: Batch) -> None:
        """End a call. `retry`, `give_up` or `abandon` its batch later."""
        self._running -= 1
        batch.failures += 1

    def finished(self, batch: Batch, now: float) -> list[ConsumedRecord]:
        """End a call; return the records to acknowledge, those of one holding in order."""
        self._running -= 1
        return self.give_up(batch, now)

    def give_up(self, batch: Batch, now: float) -> list[ConsumedRecord]:
        """Count a batch that failed as handled; return what `finished` returns."""
        acknowledged: list[ConsumedRecord] = []
        for work in batch.works:
            if (passed := self._finish(work)) is not None:
                acknowledged.append(passed)
            self._release(work.record.key, now)
        return acknowledged

    def join_later(self, batch: Batch) -> None:
        """Add every later record of its keys to a batch that failed."""
        for key in dict.fromkeys(work.record.key for work in batch.works):
            batch.works += self._waiting[key]
            self._waiting[key].clear()

    def retry(self, batch: Batch) -> None:
        self._retries.append(batch)

    def abandon(self, batch: Batch) -> int:
        """Leave a batch that failed unhandled, and so every later record of its keys. Return their number."""
        before = self.unfinished
        for work in batch.works:
            later = self._waiting[work.record.key]
            self.unfinished -= 1 + len(later)
            later.clear()
        return before - self.unfinished

    def _finish(self, work: Work) -> ConsumedRecord | None:
        """Return the last record that can be acknowledged now, if there is one."""
        holding, passed = work.holding, None if self._passes(work) else work
        work.done = True
        self.unfinished -= 1
        holding.unhandled_bytes -= work.size_bytes
        holding.ahead_records -= passed is not None
        while holding.unpassed and holding.unpassed[0].done:
            passed = holding.unpassed.popleft()
            holding.ahead_records -= 1
        if holding.paused and not holding.ended and not self._uses(holding, 1 / 2):
            holding.paused = False
            self._resumed.append(holding.key)
        return None if passed is None or holding.ended else passed.record

    def _release(self, key: bytes, now: float) -> None:
        """Let the next records of a key start. The last records of its batch end in the same call."""
        if key in self._busy:
            self._busy.remove(key)
            if waiting := self._waiting[key]:
                self._ready[key] = now
                self._ready_records += len(waiting)
            else:
                del self._waiting[key]

    # Segments

    def unfinished_of(self, key: HeldKey) -> bool:
        """Return whether a revoked holding still has records to handle."""
        return key in self._holdings and self._holdings[key].ahead_records > 0

    def revoke(self, key: HeldKey) -> list[ConsumedRecord]:
        """Return the records that are given back (rule 6): they count as not added."""
        holding = self._holdings.get(key)
        return [] if holding is None else self._take_back(holding, holding.last_begun if self._cumulative else -1)

    def end(self, key: HeldKey) -> None:
        """End a holding (rule 7)."""
        if (holding := self._holdings.pop(key, None)) is not None:
            self._take_back(holding, -1)
            holding.ended = True

    def _take_back(self, holding: _Holding, last_kept: int) -> list[ConsumedRecord]:
        """Remove what was not begun and is behind the offset ``last_kept``."""
        going: list[Work] = []
        for key, waiting in list(self._waiting.items()):
            kept = deque(work for work in waiting if work.holding is not holding or work.record.offset <= last_kept)
            going += [work for work in waiting if work.holding is holding and work.record.offset > last_kept]
            self._waiting[key] = kept
            if not kept and key not in self._busy:
                del self._waiting[key], self._ready[key]
        self._ready_records = sum(len(self._waiting[key]) for key in self._ready)
        holding.unpassed = deque(work for work in holding.unpassed if work.begun or work.record.offset <= last_kept)
        holding.ahead_records -= len(going)
        holding.unhandled_bytes -= sum(work.size_bytes for work in going)
        self.unfinished -= len(going)
        return [work.record for work in going]
