"""Perform the commands of one producer session: send, route replies, keep time, report outcomes.

It sends whatever a session can number: batches of records, or of acknowledgements.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from headgate.client.connection import Client
from headgate.client.decisions.producer_session import ProducerSession
from headgate.client.decisions.session_batches import (
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
from headgate.client.decisions.session_transitions import ATTEMPT_PHASES, Phase
from headgate.errors import NoLeaderError, rejection
from headgate.log.event_log import get_logger
from headgate.protocol.announcements import LeaderAnnouncement
from headgate.protocol.replies import Committed, ProducerIdentity, Rejected, Reply, Verdict
from headgate.protocol.requests import OpenProducer

log = get_logger(__name__)


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
        error = rejection(verdict, reason)
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
