"""The open batches of one shard, and when each is handed to the session that sends it.

It applies rules 2, 3 and 6 of `headgate.client.producer`: a batch is sealed when it is full, has
lingered, contains an expired record, or precedes a source position of another topic.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.client.connection import Client
from headgate.client.decisions.batch_growth import BatchGrowth
from headgate.client.decisions.session_batches import NamedProgram, Outcome
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import BatchContent, Delivery, RecordBatch
from headgate.client.producing.shard_session import ShardSession
from headgate.model.headers import MAX_OWN_HEADER_BYTES, Headers
from headgate.protocol.replies import SourcePosition
from headgate.protocol.requests import Record

REQUEST_OVERHEAD_BYTES: Final = 4096 + MAX_OWN_HEADER_BYTES
"""At least what a request has besides its records: names, numbers and a source position, and headgate's own headers."""


@dataclass(slots=True)
class _OpenBatch:
    batch: RecordBatch
    full_bytes: int
    leaves_at: int
    """See `BatchGrowth`."""
    lingered: bool = False


class ShardBatches:
    def __init__(
        self,
        client: Client,
        shard: int,
        *,
        program: NamedProgram | None,
        settings: ProducerSettings,
        pending: set[RecordBatch],
        on_outcome: Callable[[int, float, RecordBatch, Outcome, int, int], None],
        on_end: Callable[[], None],
    ) -> None:
        self.shard = shard
        self.positions: dict[str, SourcePosition] = {}
        """Topic that a named producer has opened → what its next record with a source position follows."""
        self.session = ShardSession(
            client,
            shard,
            program=program,
            max_in_flight=settings.max_in_flight,
            request_timeout_seconds=settings.request_timeout_seconds,
            on_progress=self._offer_lingered,
            on_end=on_end,
        )
        self._client = client
        self._settings = settings
        self._growth = BatchGrowth(settings.batch_bytes)
        self._growth.limit(self.max_record_bytes())
        self._pending = pending
        self._on_outcome = on_outcome
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, _OpenBatch] = {}
        self._offering = False
        self._filled = False
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def batch_bytes(self) -> int:
        """Every broker and leader accepts a record of so much."""
        return self._growth.least_bytes

    def starts_new_batch(self, topic: str, size_bytes: int) -> bool:
        """Return, once per batch, whether ``size_bytes`` more start a new one."""
        opened = self._open.get(topic)
        if opened is not None:
            return not self._fits(opened, size_bytes)
        filled, self._filled = self._filled, False
        return filled

    def add(
        self,
        topic: str,
        record: Record,
        headers: Headers,
        size_bytes: int,
        source_position: bytes | None,
        started_at: float,
    ) -> Delivery:
        """Add a record to its topic's open batch. ``started_at``: loop time at which `send` was called."""
        moved = None
        if source_position is not None:
            for other in [name for name in self._open if name != topic]:
                self._seal(other)
            before = self.positions[topic]
            moved = before, SourcePosition(topic_id=before.topic_id, position=source_position)
            self.positions[topic] = moved[1]
        deadline = started_at + self._settings.delivery_timeout_seconds
        opened = self._accepting(topic, size_bytes, deadline)
        delivery = opened.batch.add(record, size_bytes, moved, deadline, headers)
        self._seal_if_full(opened)
        return delivery

    def capacity(self, topic: str, ends: list[int], first: int) -> int:
        """Return how many records from number ``first`` on can be added at once, at least one.

        ``ends``: the bytes of all records up to and including each.
        """
        before_bytes = ends[first - 1] if first else 0
        opened, content, full_bytes = self._open.get(topic), BatchContent(reserved_headers=False), 0
        if opened is not None and self._fits(opened, ends[first] - before_bytes):
            content, full_bytes = opened.batch.content, opened.full_bytes
        limit_bytes = full_bytes or self._growth.full_bytes()
        free_bytes, free_records = content.places(
            limit_bytes if self.session.ready_for_batch else self._growth.most_bytes
        )
        return max(1, min(bisect_right(ends, before_bytes + free_bytes, first) - first, free_records))

    def extend(
        self, topic: str, records: list[Record], size_bytes: int, started_at: float
    ) -> tuple[RecordBatch, int, int]:
        """Add records without headers, not more than `capacity`."""
        deadline = started_at + self._settings.delivery_timeout_seconds
        opened = self._accepting(topic, size_bytes, deadline)
        part = opened.batch.extend(records, size_bytes, deadline)
        self._seal_if_full(opened)
        return part

    def _accepting(self, topic: str, size_bytes: int, deadline: float) -> _OpenBatch:
        """Return the open batch of ``topic``, or a new one if ``size_bytes`` more do not fit."""
        opened = self._open.get(topic)
        if opened is not None and not (self._fits(opened, size_bytes) and opened.batch.accepts_deadline(deadline)):
            self._seal(topic)
            opened = None
        if opened is None:
            opened = self._open_batch(topic)
            self._watch_deadline(deadline)
        return opened

    def _seal_if_full(self, opened: _OpenBatch) -> None:
        if opened.batch.content.size_bytes >= opened.full_bytes and not self._fits(opened, 1):
            self._filled = True
            self._seal(opened.batch.topic)

    def _fits(self, opened: _OpenBatch, size_bytes: int) -> bool:
        content = opened.batch.content
        return content.fits(size_bytes, opened.full_bytes) or (
            not self.session.ready_for_batch and content.fits(size_bytes, self._growth.most_bytes)
        )

    def seal_all(self) -> None:
        for topic in list(self._open):
            self._seal(topic)

    def close(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.session.close()

    def _watch_deadline(self, deadline: float) -> None:
        """Wake at ``deadline``, or earlier: one timer for all open batches, because few are open that long."""
        if self._deadline_timer is not None:
            if self._deadline_timer.when() <= deadline:
                return
            self._deadline_timer.cancel()
        self._deadline_timer = self._loop.call_at(deadline, self._seal_expiring)

    def _seal_expiring(self) -> None:
        """Hand open batches with expired records to the session, which reports them."""
        self._deadline_timer = None
        now = self._loop.time()
        for topic in [topic for topic, opened in self._open.items() if opened.batch.deadlines[0] <= now]:
            self._seal(topic)
        if self._open:
            self._watch_deadline(min(opened.batch.deadlines[0] for opened in self._open.values()))

    def max_record_bytes(self) -> int:
        """Return how many bytes of records one request can contain, as far as the broker says what it accepts."""
        return max(0, self._client.max_request_bytes(self.shard) - REQUEST_OVERHEAD_BYTES)

    def _open_batch(self, topic: str) -> _OpenBatch:
        growth = self._growth
        growth.limit(self.max_record_bytes())
        on_outcome = partial(self._on_batch_outcome, self._loop.time())
        batch = RecordBatch(topic, on_outcome, reserved_headers=self._settings.reserved_headers)
        full_bytes = growth.full_bytes()
        opened = self._open[topic] = _OpenBatch(batch, full_bytes, growth.leaves_at(full_bytes))
        self._pending.add(batch)
        if self._settings.linger_seconds:
            self._loop.call_later(self._settings.linger_seconds, partial(self._on_lingered, opened))
        else:
            self._loop.call_soon(self._on_lingered, opened)
        return opened

    def _on_lingered(self, opened: _OpenBatch) -> None:
        opened.lingered = True
        if self._open.get(opened.batch.topic) is opened:
            self._offer_lingered()

    def _offer_lingered(self) -> None:
        """Rule 2 of `headgate.client.producer`, and rule 3 of `headgate.client.decisions.batch_growth`."""
        if self._offering:
            return
        self._offering = True
        while self.session.ready_for_batch and (topic := self._first_to_leave()) is not None:
            self._seal(topic)
        self._offering = False

    def _first_to_leave(self) -> str | None:
        answered_bytes = self._growth.answered_bytes
        due = (topic for topic, each in self._open.items() if each.lingered and each.leaves_at <= answered_bytes)
        return next(due, None)

    def _seal(self, topic: str) -> None:
        batch = self._open.pop(topic).batch
        self._growth.offered_bytes += batch.content.size_bytes
        self.session.offer(batch)

    def _on_batch_outcome(
        self, opened_at: float, batch: RecordBatch, outcome: Outcome, records: int, released_bytes: int
    ) -> None:
        self._growth.answered_bytes += released_bytes
        self._on_outcome(self.shard, opened_at, batch, outcome, records, released_bytes)
