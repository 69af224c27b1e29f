"""The open batches of one shard, and when each is handed to the session that sends it.

It applies rules 2, 3 and 6 of `headgate.client.producer`: a batch is sealed when it is full, has
lingered, contains an expired record, or precedes a source position of another topic.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from headgate.client.connection import Client
from headgate.client.decisions.session_batches import NamedProgram, Outcome
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import Delivery, RecordBatch
from headgate.client.producing.shard_session import ShardSession
from headgate.model.headers import Headers
from headgate.protocol import messages as m

REQUEST_OVERHEAD_BYTES: Final = 4096
"""At least what a request has besides its records: names, numbers and a source position."""

GROWTH: Final = 4
"""How many times as large a batch gets while the window is full. A message costs a leader as much as 50 records of
1 KB, so four times as large batches of them take two thirds of its time. Larger ones gain little more."""


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
        self.topic_ids: dict[str, int] = {}
        """Of the topics that a named producer has opened."""
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
        self.batch_bytes = self._grown_bytes = 0
        """A batch of more is full; as far as the broker accepts so much."""
        self._limit_batches()
        self._pending = pending
        self._on_outcome = on_outcome
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, RecordBatch] = {}
        self._lingered: set[str] = set()
        self._offering = False
        self._filled = False
        self._deadline_timer: asyncio.TimerHandle | None = None

    def starts_new_batch(self, topic: str, size_bytes: int) -> bool:
        """Return, once per batch, whether ``size_bytes`` more start a new one."""
        batch = self._open.get(topic)
        if batch is not None:
            return not batch.content.fits(size_bytes, self._full_bytes)
        filled, self._filled = self._filled, False
        return filled

    def add(
        self,
        topic: str,
        record: m.Record,
        headers: Headers,
        size_bytes: int,
        position: tuple[bytes, int] | None,
        started_at: float,
    ) -> Delivery:
        """Add a record to its topic's open batch.

        ``position``: a source position, and the id of the topic that it is in. ``started_at``: loop time at which
        `send` was called.
        """
        if position is not None:
            for other in [name for name in self._open if name != topic]:
                self._seal(other)
        deadline = started_at + self._settings.delivery_timeout_seconds
        batch, full_bytes = self._open.get(topic), self._full_bytes
        if batch is not None and not (batch.content.fits(size_bytes, full_bytes) and batch.accepts_deadline(deadline)):
            self._seal(topic)
            batch = None
        if batch is None:
            batch = self._open_batch(topic)
            self._watch_deadline(deadline)
        delivery = batch.add(record, size_bytes, position, deadline, headers)
        if batch.content.size_bytes >= full_bytes:
            self._filled = True
            self._seal(topic)
        return delivery

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
        for topic in [topic for topic, batch in self._open.items() if batch.deadlines[0] <= now]:
            self._seal(topic)
        if self._open:
            self._watch_deadline(min(batch.deadlines[0] for batch in self._open.values()))

    def max_record_bytes(self) -> int:
        """Return how many bytes of records one request can contain, as far as the broker says what it accepts."""
        return max(0, self._client.max_request_bytes(self.shard) - REQUEST_OVERHEAD_BYTES)

    def _limit_batches(self) -> None:
        wanted, accepted = self._settings.batch_bytes, self.max_record_bytes()
        self.batch_bytes, self._grown_bytes = min(wanted, accepted), min(wanted * GROWTH, accepted)

    @property
    def _full_bytes(self) -> int:
        """Bytes at which the open batch is full: it grows while the window has no space for it."""
        return self.batch_bytes if self.session.ready_for_batch else self._grown_bytes

    def _open_batch(self, topic: str) -> RecordBatch:
        self._limit_batches()
        on_outcome = partial(self._on_outcome, self.shard, self._loop.time())
        batch = RecordBatch(topic, on_outcome, reserved_headers=self._settings.reserved_headers)
        self._open[topic] = batch
        self._pending.add(batch)
        if self._settings.linger_seconds:
            self._loop.call_later(self._settings.linger_seconds, partial(self._on_lingered, topic, batch))
        else:
            self._loop.call_soon(self._on_lingered, topic, batch)
        return batch

    def _on_lingered(self, topic: str, batch: RecordBatch) -> None:
        if self._open.get(topic) is batch:
            self._lingered.add(topic)
            self._offer_lingered()

    def _offer_lingered(self) -> None:
        """Rule 2 of `headgate.client.producer`."""
        if self._offering:
            return
        self._offering = True
        while self._lingered and self.session.ready_for_batch:
            self._seal(next(topic for topic in self._open if topic in self._lingered))
        self._offering = False

    def _seal(self, topic: str) -> None:
        batch = self._open.pop(topic)
        self._lingered.discard(topic)
        self.session.offer(batch)
