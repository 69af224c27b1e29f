"""A leader as the verdict table describes it, and a network that loses, doubles and reorders messages.

It is written from the table alone, without the controller's code, so that the session is checked
against the specification.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from headgate.client.decisions.producer_session import ProducerSession
from headgate.client.decisions.session_types import (
    Command,
    Expire,
    ForgetRequests,
    OpenIdentity,
    Outcome,
    Resolve,
    SendBatch,
)
from headgate.protocol import messages as m

WINDOW = 8


@dataclass
class Known:
    """One producer, as stored in the ledger."""

    epoch: int
    token: str
    next_sequence: int = 0
    previous_next_sequence: int | None = None


@dataclass
class History:
    """The content of the ledger."""

    producers: dict[int, Known] = field(default_factory=dict)
    log: list[int] = field(default_factory=list)
    next_id: int = 1


class LeaderModel:
    """One leader: applies requests at once, and replies when they are durable. ``ledger`` survives it."""

    def __init__(self, epoch: int, ledger: History) -> None:
        self.epoch = epoch
        self.state = copy.deepcopy(ledger)
        self.waiting: list[m.Reply] = []
        self.deposed = False
        self.refuse_next: list[m.Verdict] = []

    def commit(self) -> tuple[History, list[m.Reply]]:
        """Make everything durable; returns the ledger and the replies that can be sent."""
        assert not self.deposed
        replies, self.waiting = self.waiting, []
        return copy.deepcopy(self.state), replies

    def judge(self, command: SendBatch | OpenIdentity) -> list[m.Reply]:
        """Handle a request; returns the replies that are sent at once."""
        if command.leader_epoch != self.epoch:
            return [self._refuse(command, "not_leader")]
        if self.refuse_next:
            return [self._refuse(command, self.refuse_next.pop())]
        if isinstance(command, OpenIdentity):
            return self._open(command)
        known = self.state.producers.get(command.producer_id)
        if known is None:
            return self._later(self._refuse(command, "forgotten"))
        if command.producer_epoch < known.epoch:
            return self._later(self._refuse(command, "fenced"))
        if command.producer_epoch > known.epoch and self.deposed:
            return self._later(self._refuse(command, "out_of_order"))
        assert command.producer_epoch == known.epoch, "an epoch that no leader granted"
        if command.sequence > known.next_sequence:
            return self._later(self._refuse(command, "out_of_order"))
        duplicate = command.sequence < known.next_sequence
        if not duplicate:
            if command.batch < 0:  # an unknown topic
                return self._later(self._refuse(command, "invalid"))
            known.next_sequence += 1
            self.state.log.append(command.batch)
        return self._later(self._reply(command, m.Committed(duplicate=duplicate)))

    def _open(self, command: OpenIdentity) -> list[m.Reply]:
        for producer_id, opened in self.state.producers.items():
            if opened.token == command.token:
                if opened.next_sequence:
                    return self._later(self._refuse(command, "fenced"))
                return self._identity(command, producer_id)
        known = self.state.producers.get(command.producer_id or 0)
        if known is None:
            producer_id = self.state.next_id
            self.state.next_id += 1
            self.state.producers[producer_id] = Known(0, command.token)
            return self._identity(command, producer_id)
        assert command.producer_id is not None
        if known.epoch != command.producer_epoch:
            return self._later(self._refuse(command, "fenced"))
        self.state.producers[command.producer_id] = Known(known.epoch + 1, command.token, 0, known.next_sequence)
        return self._identity(command, command.producer_id)

    def _identity(self, command: OpenIdentity, producer_id: int) -> list[m.Reply]:
        known = self.state.producers[producer_id]
        identity = m.ProducerIdentity(
            producer_id=producer_id,
            producer_epoch=known.epoch,
            previous_next_sequence=known.previous_next_sequence,
        )
        return self._later(self._reply(command, identity))

    def _later(self, reply: m.Reply) -> list[m.Reply]:
        self.waiting.append(reply)
        return []

    def _refuse(self, command: SendBatch | OpenIdentity, verdict: m.Verdict) -> m.Reply:
        return self._reply(command, m.Rejected(verdict=verdict, reason="refused by the model"))

    def _reply(self, command: SendBatch | OpenIdentity, body: m.AnyReplyBody) -> m.Reply:
        return m.Reply(request_id=command.request_id, leader_epoch=self.epoch, body=body)


class ProducerSessionSimulation:
    """One session, its leaders, and the network between them. Every random choice comes from one seed."""

    def __init__(self, seed: int, *, loss: float, doubling: float, deadline: float, reorder: bool) -> None:
        self.rng = random.Random(seed)
        self.loss, self.doubling, self.reorder = loss, doubling, reorder
        self.deadline = deadline
        self.now = 0.0
        self.ids = iter(range(1, 10**9))
        self.session = ProducerSession(
            max_in_flight=self.rng.choice([1, 2, 5, 8]),
            request_timeout_seconds=0.5,
            request_ids=self.ids,
            tokens=(f"token-{n}" for n in range(10**9)),
        )
        self.ledger = History()
        self.leaders = [LeaderModel(1, self.ledger)]
        self.to_leader: list[SendBatch | OpenIdentity] = []
        self.to_client: list[m.Reply] = []
        self.forgotten: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}
        self.sent: set[int] = set()
        self.expired = 0
        """How often records expired before their batch."""
        self.resolved_at: dict[int, float] = {}
        self.offered_at: dict[int, float] = {}
        self.next_batch = 1
        self.most_in_flight = 0

    def perform(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SendBatch() | OpenIdentity():
                    if isinstance(command, SendBatch):
                        self.sent.add(command.batch)
                    if self.rng.random() >= self.loss:
                        copies = 2 if self.rng.random() < self.doubling else 1
                        self.to_leader += [command] * copies
                case Expire(batch, due, outcome):
                    assert batch not in self.outcomes, f"{batch} has an outcome already"
                    assert batch in self.sent or outcome is Outcome.FAILED
                    # What cannot be answered in time is not sent, and its outcome is early.
                    earliest = due if outcome is Outcome.UNKNOWN else due - self.deadline / 2
                    assert earliest - 1e-9 <= self.now <= due + 0.2, "too early or too late"
                    self.expired += 1
                case Resolve(batch, outcome):
                    assert batch not in self.outcomes, f"{batch} has two outcomes"
                    self.outcomes[batch] = outcome
                    self.resolved_at[batch] = self.now
                case ForgetRequests(request_ids):
                    self.forgotten.update(request_ids)
        self.most_in_flight = max(self.most_in_flight, self.session.in_flight)
        wake_at = self.session.wake_at
        assert wake_at is None or wake_at > self.now - 1e-9 or commands, "the session asks to be woken in the past"

    # Steps

    def offer(self, payload: int | None = None) -> None:
        if payload is None:
            payload = self.next_batch
            self.next_batch += 1
        self.offered_at[payload] = self.now
        # The first records of some batches are older than the last ones.
        oldest = self.rng.choice([0.5, 1.0]) * self.deadline
        self.perform(self.session.offer(payload, sorted({self.now + oldest, self.now + self.deadline}), self.now))

    def announce(self, leader: LeaderModel, *, pipelining: bool = True) -> None:
        self.perform(self.session.follow_leader(leader.epoch, pipelining, WINDOW, self.now))

    def connect(self, connected: bool) -> None:
        if not connected:
            self.to_client.clear()
        self.perform(self.session.connection_changed(connected, self.now))

    def pass_request(self) -> None:
        """Deliver a request to all subscribers: the leader, and the deposed one before it."""
        if not self.to_leader:
            return
        command = self.to_leader.pop(self._next(len(self.to_leader)))
        for leader in self.leaders[-2:]:
            for reply in leader.judge(command):
                self._send(reply)

    def commit(self) -> None:
        self.ledger, replies = self.leaders[-1].commit()
        for reply in replies:
            self._send(reply)

    def _send(self, reply: m.Reply) -> None:
        if self.rng.random() >= self.loss:
            self.to_client += [reply] * (2 if self.rng.random() < self.doubling else 1)

    def pass_reply(self) -> None:
        if not self.to_client:
            return
        reply = self.to_client.pop(self._next(len(self.to_client)))
        if reply.request_id in self.forgotten:
            return
        jitter = self.rng.random()
        match reply.body:
            case m.Committed() as committed:
                self.perform(self.session.committed(reply.request_id, committed, self.now))
            case m.ProducerIdentity() as identity:
                self.perform(self.session.identified(reply.request_id, identity, self.now))
            case m.Rejected() as rejected:
                self.perform(self.session.rejected(reply.request_id, reply.leader_epoch, rejected, self.now, jitter))

    def change_leader(self) -> None:
        """Start a new leader from the ledger; what was not durable is lost. The old one is not informed."""
        self.leaders[-1].deposed = True
        self.leaders.append(LeaderModel(self.leaders[-1].epoch + 1, self.ledger))
        if self.rng.random() < 0.7:
            self.announce(self.leaders[-1], pipelining=self.rng.random() < 0.8)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (wake_at := self.session.wake_at) is not None and wake_at <= until:
            self.now = max(self.now, wake_at)
            self.perform(self.session.tick(self.now, self.rng.random()))
        self.now = until

    def _next(self, count: int) -> int:
        return self.rng.randrange(count) if self.reorder and self.rng.random() < 0.3 else 0

    def settle(self, seconds: float = 20.0) -> None:
        """End all faults, and deliver every message."""
        self.loss = self.doubling = 0.0
        self.connect(True)
        self.announce(self.leaders[-1])
        end = self.now + seconds
        while self.now < end and self.session.unresolved_batches:
            for _ in range(20):
                self.pass_request()
            self.commit()
            while self.to_client:
                self.pass_reply()
            self.pass_time(0.05)
        while self.to_leader:
            self.pass_request()
        self.commit()
