"""Decide which records a handler gets next, when again, and what can be acknowledged. Pure.

1. Records of one key are handled one after the other, in the order in which they were added.
2. Of the keys that may start, the one whose next record has waited longest is first. At most ``concurrency`` calls of
   the handler run. A batch that waits for its retry is no call, but its keys wait.
3. STREAM and CHECKPOINT: the low-water mark of a holding, (segment, generation), is its first record that is not
   handled. Everything below can be acknowledged. QUEUE: each record can be, once it is handled.
4. A segment gets no further records while it uses its share of the look-ahead.
5. A record that waits for others of its batch waits for ``max_wait_seconds`` at most.
6. When a segment is revoked, records that were not begun are given back. With a low-water mark, those below a record
   that was begun are handled too: the next holder would repeat everything above the mark.
7. When a holding has ended, what is handled of it has no effect any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from headgate.backoff import Backoff
from headgate.client.decisions.held_segments import HeldKey
from headgate.errors import ConfigError
from headgate.settings.arguments import require_choice, require_count, require_seconds

if TYPE_CHECKING:
    from headgate.client.consumed_record import ConsumedRecord


class LastAction(StrEnum):
    """What happens to a record whose handler has failed for the last time."""

    STOP = "stop"
    """`Consumer.run` raises HandlerFailedError. The record stays unacknowledged."""
    SKIP = "skip"
    """The record is logged, counted and acknowledged, as if it was handled."""
    REDELIVER = "redeliver"
    """QUEUE: the record is acknowledged negatively, so it is delivered again, or goes to the dead-letter topic."""

    PARK = "park"
    """STREAM: the record's key is parked: its records go to the dead-letter topic, and other keys continue."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a handler that raised is called again, and what happens after its last attempt.

    While a record waits for its retry, only records of the same key wait with it. A pause doubles with each
    failure; up to half of it is random.
    """

    attempts: int = 5
    """Calls of the handler for one record, or for one batch. 1: no retry."""
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 10.0
    exceptions: tuple[type[Exception], ...] = (Exception,)
    """The exceptions after which the handler is called again. Others lead to the last action at once."""
    then: LastAction | str = LastAction.STOP
    """The last action; its name is accepted too."""

    def __post_init__(self) -> None:
        require_count("RetryPolicy: attempts", self.attempts)
        first = require_seconds("RetryPolicy: first_pause_seconds", self.first_pause_seconds)
        require_seconds("RetryPolicy: longest_pause_seconds", self.longest_pause_seconds, at_least=first)
        require_choice("RetryPolicy: then", self.then, [each.value for each in LastAction])
        try:
            isinstance(None, self.exceptions)
        except TypeError:
            raise ConfigError(f"RetryPolicy: exceptions={self.exceptions!r}: use a tuple of exceptions") from None

    def after(self, failures: int, error: BaseException, draw: float) -> float | LastAction:
        """Return the pause before the next attempt in seconds, or the last action.

        ``failures`` includes this one; ``draw`` is a random number from 0 to 1.
        """
        if failures >= self.attempts or not isinstance(error, self.exceptions):
            return LastAction(self.then)
        pauses = Backoff(first_seconds=self.first_pause_seconds, longest_seconds=self.longest_pause_seconds)
        return pauses.seconds(failures - 1, draw)


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """How records are collected for one call of the handler."""

    max_records: int = 100
    max_wait_seconds: float = 1.0
    """How long a record that could be handled waits for others."""

    def __post_init__(self) -> None:
        require_count("BatchPolicy: max_records", self.max_records)
        require_seconds("BatchPolicy: max_wait_seconds", self.max_wait_seconds, at_least=0.0)


SINGLE: Final = BatchPolicy(max_records=1, max_wait_seconds=0.0)
"""Without batches: each record alone, at once."""


@dataclass(frozen=True, kw_only=True)
class LookAhead:
    """How far records are read beyond those that are not handled, in equal shares for the held segments.

    A segment that uses its share gets no further records until it uses less than half; the others continue. Up to 1 000
    records that are read already come in addition.
    """

    max_records: int = 10_000
    """Records beyond the low-water marks, handled or not: a crash can repeat as many."""
    max_bytes: int = 64 << 20
    """Bytes of records that are not handled."""

    def __post_init__(self) -> None:
        require_count("LookAhead: max_records", self.max_records)
        require_count("LookAhead: max_bytes", self.max_bytes)


@dataclass(slots=True, eq=False)
class _Holding:
    key: HeldKey
    unpassed: deque[Work] = field(default_factory=deque)
    """STREAM and CHECKPOINT: what is not below the low-water mark, in order."""
    ahead_records: int = 0
    """Records that are not below the low-water mark; QUEUE: that are not handled."""
    unhandled_bytes: int = 0
    last_begun: int = -1
    """The highest offset of a record that was begun. A resumed one has an offset of the dead-letter topic."""
    paused: bool = False
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Key:
    waiting: deque[Work] = field(default_factory=deque)
    """Its records that were not begun, in order."""
    busy: bool = False


@dataclass(slots=True, eq=False)
class Work:
    number: int
    """Rises with each record that is added."""
    added_at: float
    record: ConsumedRecord
    holding: _Holding
    key: _Key
    size_bytes: int
    passes: bool
    """Whether it counts for the low-water mark. One that was parked and is resumed does not."""
    begun: bool = False
    done: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    works: list[Work]
    failures: int = 0
    left_out: Collection[Work] = ()
    """Those that the handler does not get: they are delivered again, or another consumer has them."""

    @property
    def records(self) -> list[ConsumedRecord]:
        """The records, those of one key in order, without those of holdings that have ended."""
        return [work.record for work in self.works if not work.holding.ended and work not in self.left_out]

    def begin(self, records: list[ConsumedRecord]) -> None:
        """Leave out what is not in ``records``."""
        if len(records) < len(self.works):
            begun = set(map(id, records))
            self.left_out = {work for work in self.works if id(work.record) not in begun}


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
        self.cumulative = cumulative
        self.running = 0
        """Calls of the handler."""
        self._held = 1
        """Segments that have a share of the look-ahead."""
        self._holdings: dict[HeldKey, _Holding] = {}
        self._numbers = count()
        self._keys: dict[bytes, _Key] = {}
        """Those with records that were not begun, or that are busy."""
        self._ready: list[tuple[int, _Key]] = []
        """A heap: (number of its next record, a key that has records and is not busy)."""
        self._ready_records = 0
        self._retries: deque[Batch] = deque()
        self._resumed: list[HeldKey] = []

    @property
    def is_free(self) -> bool:
        """Whether fewer calls run than may."""
        return self.running < self._concurrency

    # Records

    def add(self, record: ConsumedRecord, now: float, held: int) -> HeldKey | None:
        """Add a record. Return its holding if that gets no further records; ``held`` segments have a share."""
        holding_key, key_bytes, headers = (record.segment, record.generation), record.key, record.headers
        holding = self._holdings.get(holding_key)
        if holding is None:
            holding = self._holdings[holding_key] = _Holding(holding_key)
        key = self._keys.get(key_bytes)
        if key is None:
            key = self._keys[key_bytes] = _Key()
        size_bytes = len(key_bytes) + len(record.value)
        if headers:
            size_bytes += sum(map(len, chain.from_iterable(headers)))
        passes = self.cumulative and not record.parked_number
        work = Work(next(self._numbers), now, record, holding, key, size_bytes, passes)
        holding.ahead_records += 1
        holding.unhandled_bytes += size_bytes
        if work.passes:
            holding.unpassed.append(work)
        self.unfinished += 1
        if not key.busy:
            self._ready_records += 1
            if not key.waiting:
                heappush(self._ready, (work.number, key))
        key.waiting.append(work)
        self._held = held
        if holding.paused or not self._uses(holding, 1):
            return None
        holding.paused = True
        return holding_key

    def _uses(self, holding: _Holding, part: float) -> bool:
        """Return whether a holding uses ``part`` of its share, or more."""
        limit, share = self._look_ahead, part / self._held
        return holding.ahead_records >= limit.max_records * share or holding.unhandled_bytes >= limit.max_bytes * share

    def take_resumed(self) -> list[HeldKey]:
        """Return the holdings that get records again since the last call."""
        resumed, self._resumed = self._resumed, []
        return resumed

    # Calls of the handler

    def can_start(self, now: float) -> bool:
        if self.running >= self._concurrency or not (self._ready or self._retries):
            return False
        is_full = self._ready_records >= self._batch.max_records
        return is_full or self.hurried or bool(self._retries) or now >= self._due_at

    def start(self, now: float) -> Batch | None:
        if not self.can_start(now):
            return None
        self.running += 1
        if self._retries:
            return self._retries.popleft()
        limit = self._batch.max_records
        works: list[Work] = []
        while self._ready and len(works) < limit:
            key = heappop(self._ready)[1]
            key.busy = True
            waiting = key.waiting
            self._ready_records -= len(waiting)
            while waiting and len(works) < limit:
                works.append(work := waiting.popleft())
                work.begun = True
                if work.passes:
                    work.holding.last_begun = max(work.holding.last_begun, work.record.offset)
        return Batch(works)

    @property
    def starts_at(self) -> float | None:
        """When an incomplete batch is due; None: nothing waits for others."""
        return self._due_at if self._ready and self.running < self._concurrency else None

    @property
    def _due_at(self) -> float:
        return self._ready[0][1].waiting[0].added_at + self._batch.max_wait_seconds

    def failed(self, batch: Batch) -> None:
        """End a call. `retry`, `give_up` or `abandon` its batch later."""
        self.running -= 1
        batch.failures += 1

    def finished(self, batch: Batch) -> list[ConsumedRecord]:
        """End a call; return the records to acknowledge, those of one holding in order."""
        self.running -= 1
        return self.give_up(batch)

    def give_up(self, batch: Batch) -> list[ConsumedRecord]:
        """Count a batch that failed as handled; return what `finished` returns."""
        acknowledged: list[ConsumedRecord] = []
        for work in batch.works:
            if (passed := self._finish(work)) is not None and work not in batch.left_out:
                acknowledged.append(passed)
            self._release(work)
        return acknowledged

    def join_later(self, batch: Batch) -> None:
        """Add every later record of its keys to a batch that failed."""
        for key in dict.fromkeys(work.key for work in batch.works):
            batch.works += key.waiting
            key.waiting.clear()

    def retry(self, batch: Batch) -> None:
        self._retries.append(batch)

    def abandon(self, batch: Batch) -> int:
        """Leave a batch that failed unhandled, and so every later record of its keys. Return their number."""
        before = self.unfinished
        for work in batch.works:
            later = work.key.waiting
            self.unfinished -= 1 + len(later)
            later.clear()
        return before - self.unfinished

    def _finish(self, work: Work) -> ConsumedRecord | None:
        """Return the last record that can be acknowledged now, if there is one."""
        holding, passed = work.holding, None if work.passes else work
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

    def _release(self, work: Work) -> None:
        """Let the next records of a key start. The last records of its batch end in the same call."""
        key = work.key
        if key.busy:
            key.busy = False
            if key.waiting:
                heappush(self._ready, (key.waiting[0].number, key))
                self._ready_records += len(key.waiting)
            else:
                del self._keys[work.record.key]

    # Segments

    def unfinished_of(self, key: HeldKey) -> bool:
        """Return whether a revoked holding still has records to handle."""
        return key in self._holdings and self._holdings[key].ahead_records > 0

    def revoke(self, key: HeldKey, *, is_lost: bool = False) -> list[ConsumedRecord]:
        """Return the records that are given back (rule 6): they count as not added. ``is_lost``: no other begins."""
        if (holding := self._holdings.get(key)) is None:
            return []
        keeps = self.cumulative and not is_lost
        return self._take_back(holding, holding.last_begun if keeps else -1)

    def end(self, key: HeldKey) -> None:
        """End a holding (rule 7)."""
        if (holding := self._holdings.pop(key, None)) is not None:
            self._take_back(holding, -1)
            holding.ended = True

    def _take_back(self, holding: _Holding, last_kept: int) -> list[ConsumedRecord]:
        """Remove what was not begun and is behind the offset ``last_kept``, and resumed records that were not begun."""

        def goes(work: Work) -> bool:
            return work.holding is holding and not (work.passes and work.record.offset <= last_kept)

        going: list[Work] = []
        for key_bytes, key in list(self._keys.items()):
            going += filter(goes, key.waiting)
            key.waiting = deque(work for work in key.waiting if not goes(work))
            if not key.waiting and not key.busy:
                del self._keys[key_bytes]
        ready = [key for key in self._keys.values() if not key.busy]
        self._ready = [(key.waiting[0].number, key) for key in ready]
        heapify(self._ready)
        self._ready_records = sum(len(key.waiting) for key in ready)
        holding.unpassed = deque(work for work in holding.unpassed if work.begun or work.record.offset <= last_kept)
        holding.ahead_records -= len(going)
        holding.unhandled_bytes -= sum(work.size_bytes for work in going)
        self.unfinished -= len(going)
        return [work.record for work in going]
