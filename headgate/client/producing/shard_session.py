"""The batches of one shard: when each is sealed, and the session that sends it.

`ShardSession` performs the commands of `headgate.client.decisions.producer_session`: send, route replies, keep time,
report outcomes. It sends whatever a session can number: batches of records, or of acknowledgements.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.client.connection import Client
from headgate.client.decisions.producer_session import ATTEMPT_PHASES, Phase, ProducerSession
from headgate.client.decisions.session_batches import (
    BatchGrowth,
    Command,
    Expire,
    ForgetRequests,
    Identified,
    IdentityRejected,
    NamedProgram,
    OpenIdentity,
    Outcome,
    Resolve,
    Sendable,
    SendBatch,
)
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import BatchContent, Delivery, RecordBatch
from headgate.errors import HeadgateError, NoLeaderError, rejection
from headgate.log.event_log import get_logger
from headgate.model.headers import MAX_OWN_HEADER_BYTES, Headers
from headgate.protocol.codec import LeaderAnnouncement
from headgate.protocol.replies import Committed, ProducerIdentity, Rejected, Reply, SourcePosition, Verdict
from headgate.protocol.requests import OpenProducer, Record

log = get_logger(__name__)
REQUEST_OVERHEAD_BYTES: Final = 4096 + MAX_OWN_HEADER_BYTES
"""At least what a request has besides its records: names, numbers and a source position, and headgate's own headers."""


class ShardSession:
    def __init__(
        self,
        client: Client,
        shard: int,
        *,
        program: NamedProgram | None = None,
        max_in_flight: int,
        request_timeout_seconds: float,
        on_progress: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe the session.

        ``program`` None: an anonymous producer. ``on_progress`` is called after every event: the session may be
        ready for a batch. ``on_end`` is called once, if the session was fenced or forgotten.
        """
        self.shard = shard
        self.created: bool | None = None
        """Whether the producer was new when it got its first identity; None: it has none yet."""
        self.sent_batches = 0
        self._client = client
        self._program = program
        self._on_end = on_end
        self._on_progress = on_progress
        self._fenced = False
        self._open_waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._cleanup_callbacks: list[Callable[[], None]] = []
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self.session = ProducerSession(
            named=program is not None,
            max_in_flight=max_in_flight,
            request_timeout_seconds=request_timeout_seconds,
            request_ids=client.request_ids,
            tokens=iter(client.new_token, ""),
            unanswered=lambda: f"shard {shard}: {client.unanswered(shard)}",
        )
        self._log = log.bind(shard=shard, producer=None if program is None else program.name)

    async def start(self) -> None:
        self._cleanup_callbacks = [
            self._client.on_leader(self.shard, self._on_leader),
            self._client.cluster_watch.connection_handlers.add(self._on_connection),
        ]
        self._on_connection(self._client.transport.connected)
        known = self._client.leader(self.shard)
        if known is not None:
            self._on_leader(known)
        await self._client.watch_leader(self.shard)

    def end_as(self, end: tuple[Outcome, str]) -> None:
        """End as the session of another shard did, which has reported it."""
        self._fenced = True
        self._perform(self.session.end_as(end))

    def close(self, reason: str = "the producer was closed") -> None:
        if self._closed:
            return
        self._closed = True
        for remove in self._cleanup_callbacks:
            remove()
        self._perform(self.session.abandon(reason))
        self._refuse_to_open(HeadgateError(reason))
        if self._timer is not None:
            self._timer.cancel()

    # Observations

    @property
    def end(self) -> tuple[Outcome, str] | None:
        """Why it ended before it was closed: FENCED or FORGOTTEN, and the leader's reason."""
        return self.session.end if self._fenced else None

    @property
    def ready_for_batch(self) -> bool:
        return self.session.ready_for_batch

    # Requests

    def offer(self, batch: Sendable) -> None:
        """Queue ``batch``; `Sendable.resolve` receives its outcome."""
        assert not self._closed, "offered to a closed session"
        self._perform(self.session.offer(batch, batch.deadlines, self._loop.time(), batch.source))

    async def open(self, timeout_seconds: float) -> None:
        """Get an identity before there is a batch to send.

        Raises NoLeaderError, or FencedError, ForgottenError or RequestRejectedError (the leader refused it for good).
        HeadgateError: it was closed meanwhile.
        """
        if self.session.phase is Phase.FENCED:
            raise rejection(*self.session.end)
        if self.created is not None:
            return
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._open_waiters.append(waiting)
        self._perform(self.session.open(self._loop.time()))
        try:
            async with asyncio.timeout(timeout_seconds):
                await waiting
        except TimeoutError:
            raise NoLeaderError(
                f"shard {self.shard} of cluster {self._client.cluster!r}: no leader granted a producer identity "
                f"within {timeout_seconds:g} s: {self._client.unanswered(self.shard)}"
            ) from None
        finally:
            if waiting in self._open_waiters:
                self._open_waiters.remove(waiting)

    # Events

    def _on_leader(self, leader: LeaderAnnouncement) -> None:
        self._perform(self.session.follow_leader(leader.leader_epoch, leader.window, self._loop.time()))

    def _on_connection(self, connected: bool) -> None:
        self._perform(self.session.connection_changed(connected, self._loop.time()))

    def _on_reply(self, request_id: int, reply: Reply) -> None:
        now = self._loop.time()
        match reply.body:
            case Committed() as committed:
                self._perform(self.session.committed(request_id, committed, now))
            case Rejected() as rejected:
                jitter = self._client.rng.random()
                self._perform(self.session.rejected(request_id, reply.leader_epoch, rejected, now, jitter))
                if rejected.verdict == "not_leader":
                    self._client.doubt_leader(self.shard, reply.leader_epoch)
            case ProducerIdentity() as identity:
                self._perform(self.session.identified(request_id, identity, now))

    def _on_timer(self) -> None:
        self._timer = None
        before = self.session.phase
        self._perform(self.session.tick(self._loop.time(), self._client.rng.random()))
        if before in ATTEMPT_PHASES and self.session.phase is Phase.BACKING_OFF:
            self._client.doubt_leader(self.shard)  # it did not reply in time

    # Commands

    def _perform(self, commands: list[Command]) -> None:
        failed: list[int] = []
        for command in commands:
            match command:
                case SendBatch():
                    if not self._send_batch(command):
                        failed.append(command.request_id)
                case OpenIdentity():
                    if not self._send_identity_request(command):
                        failed.append(command.request_id)
                case Expire(batch, due, outcome, reason):
                    batch.expire(due, outcome, reason)
                case Resolve(batch, outcome, reply, reason):
                    batch.resolve(outcome, reply, reason)
                case ForgetRequests(request_ids):
                    for request_id in request_ids:
                        self._client.replies.forget(request_id)
                case Identified(created):
                    self._on_identified(created)
                case IdentityRejected(verdict, reason):
                    self._on_identity_rejected(verdict, reason)
        if self._closed:
            return
        if failed:
            # One is enough: it ends the attempt, and all are sent again.
            self._perform(self.session.send_failed(failed[0], self._loop.time(), self._client.rng.random()))
            return
        if self.session.phase is Phase.FENCED and not self._fenced:
            self._fenced = True
            outcome, reason = self.session.end
            self._log.error("producer.fenced", verdict=outcome.value, reason=reason)
            self._on_end()
        self._set_timer()
        if commands:
            self._on_progress()

    def _send_batch(self, command: SendBatch) -> bool:
        self.sent_batches += 1
        self._client.replies.expect(command.request_id, partial(self._on_reply, command.request_id))
        body = command.batch.request(
            producer_id=command.producer_id, producer_epoch=command.producer_epoch, sequence=command.sequence
        )
        return self._client.send(self.shard, command.request_id, command.leader_epoch, body)

    def _send_identity_request(self, command: OpenIdentity) -> bool:
        self._client.replies.expect(command.request_id, partial(self._on_reply, command.request_id))
        body = OpenProducer(
            token=command.token,
            name=None if self._program is None else self._program.name,
            incarnation=None if self._program is None else self._program.incarnation,
            secret="" if self._program is None else self._program.secret,
            producer_id=command.producer_id,
            producer_epoch=command.producer_epoch,
            # Rule 12: an anonymous producer continues, with what it has not sent yet.
            accept_new=command.producer_id is not None and self._program is None,
        )
        return self._client.send(self.shard, command.request_id, command.leader_epoch, body)

    def _on_identified(self, created: bool) -> None:
        if self.created is None:
            self.created = created
        for waiting in self._open_waiters:
            if not waiting.done():
                waiting.set_result(None)

    def _on_identity_rejected(self, verdict: Verdict, reason: str) -> None:
        self._log.error("producer.identity_rejected", verdict=verdict, reason=reason)
        self._refuse_to_open(rejection(verdict, reason))

    def _refuse_to_open(self, error: HeadgateError) -> None:
        for waiting in self._open_waiters:
            if not waiting.done():
                waiting.set_exception(error)

    def _set_timer(self) -> None:
        """Wake when the session asks for it, or earlier: most replies only move that time on."""
        wake_at = self.session.wake_at
        if self._timer is not None:
            if wake_at is not None and self._timer.when() <= wake_at:
                return
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            self._timer = self._loop.call_at(wake_at, self._on_timer)


@dataclass(slots=True)
class _OpenBatch:
    batch: RecordBatch
    full_bytes: int
    leaves_at: int
    """See `BatchGrowth`."""
    lingered: bool = False


class ShardBatches:
    """The open batches of one shard, and when each is handed to the session that sends it.

    It applies rules 2, 3 and 6 of `headgate.client.producer`: a batch is sealed when it is full, has
    lingered, contains an expired record, or precedes a source position of another topic.
    """

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
        if opened is not None and not self._fits(opened, size_bytes):
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
        """Rule 2 of `headgate.client.producer`, and rule 3 of `BatchGrowth`."""
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
