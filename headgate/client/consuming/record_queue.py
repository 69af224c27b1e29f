"""The segments that one consumer holds, the records that are queued for its program, and until when it may deliver."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from headgate.client.consumed_record import ConsumedRecord
from headgate.model.entries import SubscriptionType
from headgate.protocol.replies import Grant

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
CHECK_SECONDS: Final = 1.0
"""Between two looks whether a lease has ended. Nothing else limits for how long a call reads an external topic."""
QUEUE_RECORDS: Final = 1000
"""Most records that are queued for the program, over all segments."""


@dataclass(slots=True, eq=False)
class ParkedKey:
    queued_end: int
    """The offset after the last record that was queued before the key was parked."""
    is_resuming: bool = False
    parking: int = 0
    """As the leader names the parking that is being resumed."""
    parked_at: float = 0.0
    """Loop time at which it was parked again: what the leader said before about its resumption is outdated."""
    held: asyncio.Event | None = None
    """Set when the next record of the key need not wait any more; None: none waits, they are parked."""
    stored_at: float = float("-inf")
    """Loop time at which the dead-letter topic last had further records of the key, or all of them."""
    queued: int = 0
    """While it is being resumed: number of the last record that was queued; the others likewise."""
    delivered: int = 0
    acknowledged: int = 0
    expected: deque[int] = field(default_factory=deque)
    """Numbers of those that were queued and not taken. The queue may have others, of a resumption that has ended."""

    def is_delivered(self, number: int) -> bool:
        """Return whether a resumed record was delivered by the present resumption, and is not acknowledged."""
        return self.is_resuming and self.acknowledged < number <= self.delivered

    def takes(self, number: int) -> bool:
        """Return whether a resumed record is the next one, which is taken from the queue."""
        if not self.expected or self.expected[0] != number:
            return False
        self.delivered = self.expected.popleft()
        return True

    def pass_over(self, number: int) -> None:
        """Deliver nothing up to a number that the leader states as processed: a command may have dropped it."""
        self.queued, self.delivered = max(self.queued, number), max(self.delivered, number)
        self.acknowledged = max(self.acknowledged, number)
        self.expected = deque(each for each in self.expected if each > number)

    def end_resumption(self) -> None:
        """Deliver no more of its records; wake what waits for it."""
        self.is_resuming = False
        self.expected.clear()
        self.hold(False)

    def hold(self, wanted: bool) -> None:
        """Let the next record of the key wait, or no more. It waits for a resumption only, which may have ended."""
        if self.held is not None and not wanted:
            self.held.set()
        self.held = (self.held or asyncio.Event()) if wanted and self.is_resuming else None


class Reader(Protocol):
    async def run(self) -> None:
        """Read until cancelled."""

    def has_read(self, chunk: int) -> bool:
        """Return whether every record up to ``chunk`` was queued."""


@dataclass(slots=True, eq=False)
class OpenDeliveries:
    """What of a QUEUE's segment is at the program, or comes again."""

    unacknowledged_offsets: dict[int, int] = field(default_factory=dict)
    """Offset that is delivered and not acknowledged → its delivery count."""
    deadlines: dict[int, tuple[float, int]] = field(default_factory=dict)
    """With a time-out: offset of those → loop time at which its delivery fails, and its key bucket."""
    retrying: dict[int, float] = field(default_factory=dict)
    """Offset that has failed → loop time at which it is delivered again; infinite: it is dead."""
    has_capacity: asyncio.Event = field(default_factory=asyncio.Event)
    """Set unless the leader keeps no more failed records, or parked ones. Until then no further record is read."""

    def __post_init__(self) -> None:
        self.has_capacity.set()


@dataclass(slots=True, eq=False)
class HeldSegment:
    """A segment that this consumer holds: how far it was read, delivered and acknowledged."""

    grant: Grant
    reader: Reader
    delivered: int
    """The offset after the last record that was delivered."""
    acknowledged: int
    """STREAM: the offset after the last record that was acknowledged."""
    deliveries: OpenDeliveries = field(default_factory=OpenDeliveries)
    queued: int = 0
    """Records in the queue; those of resumed keys do not count."""
    stopped: bool = False
    read_task: asyncio.Task[None] | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """It is set at every acknowledgement, and when the segment is dropped."""
    parked: dict[bytes, ParkedKey] = field(default_factory=dict)
    """STREAM: keys whose records are not delivered."""
    queued_end: int = 0
    """The offset after the last record that was queued; resumed ones do not count."""
    taken_end: int = 0
    """The offset after the last one of them that was taken from the queue."""
    read_offset: int = 0
    """If buckets differ, or keys are parked: the offset after the last record that was read, delivered or skipped."""
    skip_reported_at: float = 0.0
    """Loop time at which ``read_offset`` was last reported."""
    resumed: asyncio.Event | None = None
    """Set when a paused segment is read again; None: it is not paused."""

    def end_delivery(self, offset: int) -> int:
        """End the present delivery of a QUEUE's record; return its delivery count."""
        self.deliveries.deadlines.pop(offset, None)
        self.progress.set()
        return self.deliveries.unacknowledged_offsets.pop(offset)

    def is_acknowledged(self, kind: SubscriptionType) -> bool:
        if kind == SubscriptionType.STREAM:
            resumed = all(each.acknowledged >= each.delivered for each in self.parked.values() if each.is_resuming)
            return self.acknowledged >= self.delivered and resumed
        return kind == SubscriptionType.CHECKPOINT or not self.deliveries.unacknowledged_offsets


class DeliveryLease:
    """Until when a consumer may deliver: afterwards, the leader may have given its segments to another consumer.

    The lease counts from when a request that was answered was first sent, by a clock that counts the machine's
    sleep, on Linux. So it ends no later than at the leader if both clocks run at the same speed. An answer that comes
    after the end does not revive it: only a registration, whose reply lists what is still held, begins the next lease.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[], None] = lambda: None
        """Called once, within `CHECK_SECONDS` of its end; a program that was frozen learns it by `is_valid` before."""
        self._seconds = 0.0
        self._ends_at = math.inf
        """By `now`; infinite before the first registration, when nothing is held."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_valid(self) -> bool:
        return self._ends_at == math.inf or self.now() < self._ends_at

    def now(self) -> float:
        """Return the time of this machine, or of a loop with a clock of its own. It is asked for each record."""
        loop = asyncio.get_running_loop()
        return time.clock_gettime(CLOCK) if type(loop).time is asyncio.BaseEventLoop.time else loop.time()

    def begin(self, asked_at: float, seconds: float) -> None:
        """Begin with the reply to a registration that was sent at ``asked_at``."""
        self._seconds = seconds
        self._set_end(asked_at + seconds)

    def extend(self, asked_at: float) -> None:
        """Follow the reply to a heartbeat that was sent at ``asked_at``."""
        if self.is_valid:
            self._set_end(max(self._ends_at, asked_at + self._seconds))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_end(self, ends_at: float) -> None:
        self.close()
        self._ends_at = ends_at
        self._timer = asyncio.get_running_loop().call_later(min(CHECK_SECONDS, ends_at - self.now()), self._check)

    def _check(self) -> None:
        """End it, or look again: the timer pauses while the machine sleeps."""
        self._set_end(self._ends_at) if self.is_valid else self.on_end()


@dataclass(slots=True, eq=False)
class Run:
    holding: HeldSegment
    records: Iterator[ConsumedRecord]
    left: int


class RecordQueue:
    """Runs of records for the program, bounded in records."""

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

    async def put(self, holding: HeldSegment, records: Iterator[ConsumedRecord], count: int = 1) -> None:
        """Append ``count`` of ``records``, which are made when they are taken."""
        async with self._entrance:
            while self.records + count > QUEUE_RECORDS:
                self._awaited = count
                self._has_space.clear()
                await self._has_space.wait()
            self._awaited = 0
            self.runs.append(Run(holding, records, count))
            self.records += count
            self._changed.set()

    def take(self, max_records: int) -> list[ConsumedRecord]:
        """Remove records from the first run, at most so many."""
        run = self.runs[0]
        records = list(islice(run.records, min(run.left, max_records)))
        count = len(records)
        run.left -= count
        if not run.left:
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
