"""A producer's session, the verdicts of its leaders, and everything that can happen between them.

The code is the product's: `ProducerSession`, `judge_term`, `judge_batch`, `open_producer`, `route_batch` and the
shard's state. Only the network, the ledger and the leaders' queues of replies are models:

1. The network may lose, double and overtake each message, within a budget; the newest request may be delivered before
   all that are late. Every leader receives every request.
2. A term ends without a word. Its leader continues to judge on what it knows, and none of its chunks becomes durable.
3. A reply waits for its chunk; so does a refusal that asks for it.
4. Time passes only when the session waits for it.
5. The newest leader may delete the topic and create it again, forget the producer, and the user's right may be
   withdrawn and given back.

Promises: a batch is stored at most once, in the order of the offers, and where its reply says; what is reported as
committed is durable when it is reported; what is reported as not stored is never stored; each batch has one outcome,
and has it once faults end.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.client.decisions.producer_session import ProducerSession
from headgate.client.decisions.session_batches import Command, OpenIdentity, Outcome, Resolve, SendBatch
from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS
from headgate.protocol.replies import Committed, ProducerIdentity, Rejected, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import OpenProducer, ProduceBatch, Record, Request
from shard.access.rules import OPEN, AccessRules, refuse_access
from shard.requests.handlers import Decision
from shard.requests.producer_commands import open_producer
from shard.requests.verdicts import Accept, Duplicate, Judgement, judge_batch, judge_term, route_batch
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal
from tests.simulation.broken_promise import BrokenPromiseError

FIRST_REQUEST_ID = 1_000_000
"""No other number is as large, so keys can recognize request ids."""
REQUEST_TIMEOUT_SECONDS = 0.5
DELIVERY_TIMEOUT_SECONDS = 1.2
"""Two requests time out before it, and the third does not."""
SETTLING_STEPS = 400
TOPIC = "orders"

NO_RIGHTS = AccessRules({})

Judge = Callable[[ProduceBatch, ShardState, int, AccessRules], Judgement]


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the environment may do each of its worst."""

    batches: int = 3
    losses: int = 1
    doubles: int = 1
    overtakings: int = 0
    terms: int = 1
    disconnections: int = 0
    topic_changes: int = 0
    right_changes: int = 0
    forgettings: int = 0


def judge(batch: ProduceBatch, state: ShardState, durable: int, rules: AccessRules) -> Judgement:
    return judge_batch(batch, state, durable, user=ANONYMOUS, rules=rules)


@dataclass
class Leader:
    """One term. ``durable`` is the newest chunk that the ledger holds of it."""

    epoch: int
    state: ShardState
    entries: list[e.AnyEntry]
    durable: int
    waiting: list[tuple[int, Reply]] = field(default_factory=list)
    deposed: bool = False

    def apply(self, entry: e.AnyEntry) -> None:
        self.entries.append(entry)
        self.state.apply_all([entry], chunk=self.state.chunk + 1, at_ms=0)


@dataclass
class Batch:
    """A `Sendable`, which only has a number."""

    number: int
    deadlines: Sequence[float] = ()

    def request(self, *, producer_id: int, producer_epoch: int, sequence: int) -> ProduceBatch:
        return ProduceBatch(
            topic=TOPIC,
            records=[Record(b"k", str(self.number).encode(), 0)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
        )

    def expire(self, due: float, outcome: Outcome, reason: str) -> None:
        raise AssertionError("a batch of one record has no part that expires")

    def resolve(self, outcome: Outcome, reply: Committed | None, reason: str) -> None:
        raise AssertionError("the model performs the commands")


class SessionAndVerdicts:
    """One producer, one shard. A `tests.exploration.search.Model`."""

    def __init__(self, budget: Budget, judge: Judge = judge, *, warm: bool, story: Sequence[str] = ()) -> None:
        """``warm``: begin with an identity and a committed batch, so that the window is open. Then follows ``story``."""
        self._budget = budget
        self._judge = judge
        self._now = 0.0
        self._offered = 0
        self._outcomes: dict[int, Outcome] = {}
        self._producer_ids = itertools.count(500)
        self._session = ProducerSession(
            max_in_flight=2,
            request_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
            request_ids=itertools.count(FIRST_REQUEST_ID),
            tokens=(f"token-{number}" for number in itertools.count()),
            unanswered=lambda: "",
        )
        self._durable: list[e.AnyEntry] = []
        self._stored: dict[int, tuple[int, int, int]] = {}
        """Batch → topic id, segment and offset, as the ledger has it."""
        self._in_flight_batches: dict[tuple[int, int], tuple[int, int]] = {}
        """(leader epoch, chunk) → batch that it stores, and topic id."""
        self._rules = OPEN
        self._requests: list[SendBatch | OpenIdentity] = []
        self._replies: list[Reply] = []
        self._forgotten: set[int] = set()
        self._sent: dict[int, SendBatch | OpenIdentity] = {}
        self._leaders: list[Leader] = []
        self._begin_term([e.TopicCreated(topic_id=1, topic=TOPIC, segments=1, token="t")])
        self._perform(self._session.connection_changed(True, self._now))
        self._announce()
        if warm:
            for step in ("offer", *("deliver request", "commit", "deliver reply") * 2):
                self.take(step)
        for step in story:
            self.take(step)

    # The search

    def choices(self) -> Sequence[str]:
        budget, newest = self._budget, self._leaders[-1]
        possible = {
            "offer": budget.batches > 0,
            "deliver request": bool(self._requests),
            "lose request": bool(self._requests) and budget.losses > 0,
            "double request": bool(self._requests) and budget.doubles > 0,
            "overtake request": len(self._requests) > 1 and budget.overtakings > 0,
            "commit": newest.state.chunk > newest.durable,
            "deliver reply": bool(self._replies),
            "lose reply": bool(self._replies) and budget.losses > 0,
            "overtake reply": len(self._replies) > 1 and budget.overtakings > 0,
            "new term": budget.terms > 0,
            "announce": self._believed != newest.epoch,
            "disconnect": budget.disconnections > 0,
            "delete topic": budget.topic_changes > 0 and TOPIC in newest.state.topics,
            "create topic": budget.topic_changes > 0 and TOPIC not in newest.state.topics,
            "withdraw the right": budget.right_changes > 0 and self._rules is OPEN,
            "give the right back": budget.right_changes > 0 and self._rules is not OPEN,
            "forget the producer": budget.forgettings > 0 and bool(self._expendable()),
            "pass time": self._session.wake_at is not None,
        }
        return [name for name, is_possible in possible.items() if is_possible]

    def take(self, choice: str) -> None:
        match choice:
            case "offer":
                self._spend("batches")
                self._offer()
            case "deliver request":
                self._judge_everywhere(self._requests.pop(0))
            case "lose request":
                self._spend("losses")
                self._requests.pop(0)
            case "double request":
                self._spend("doubles")
                self._requests.append(self._requests[0])
            case "overtake request":
                self._spend("overtakings")
                self._judge_everywhere(self._requests.pop())
            case "commit":
                self._commit()
            case "deliver reply":
                self._answer(self._replies.pop(0))
            case "lose reply":
                self._spend("losses")
                self._replies.pop(0)
            case "overtake reply":
                self._spend("overtakings")
                self._answer(self._replies.pop(1))
            case "new term":
                self._spend("terms")
                self._begin_term([])
            case "announce":
                self._announce()
            case "disconnect":
                self._spend("disconnections")
                self._replies.clear()
                self._perform(self._session.connection_changed(False, self._now))
                self._perform(self._session.connection_changed(True, self._now))
            case "pass time":
                self._pass_time()
            case "delete topic" | "create topic":
                self._spend("topic_changes")
                self._change_topic(self._leaders[-1])
            case "withdraw the right" | "give the right back":
                self._spend("right_changes")
                self._rules = NO_RIGHTS if self._rules is OPEN else OPEN
            case "forget the producer":
                self._spend("forgettings")
                self._leaders[-1].apply(e.ProducersExpired(producer_ids=self._expendable()))

    def key(self) -> Hashable:
        names: dict[Any, int] = {}
        leaders = tuple(
            (each.epoch, repr(each.entries), each.state.chunk, each.durable, each.deposed)
            for each in self._leaders[-2:]
        )
        return (
            self._budget,
            self._rules is OPEN,
            tuple(sorted(self._outcomes.items())),
            leaders,
            _shape(self._session, self._now, names),
            _shape(self._requests, self._now, names),
            _shape(self._replies, self._now, names),
            _shape([leader.waiting for leader in self._leaders[-2:]], self._now, names),
        )

    def check_end(self) -> None:
        self._announce()
        for _ in range(SETTLING_STEPS):
            if self._requests:
                self._judge_everywhere(self._requests.pop(0))
            elif self._leaders[-1].state.chunk > self._leaders[-1].durable:
                self._commit()
            elif self._replies:
                self._answer(self._replies.pop(0))
            elif len(self._outcomes) < self._offered:
                self._pass_time()
            else:
                break
        else:
            raise BrokenPromiseError(f"{self._offered - len(self._outcomes)} batches have no outcome without any fault")
        missing = set(range(1, self._offered + 1)) - set(self._outcomes)
        if missing:
            raise BrokenPromiseError(f"batches {sorted(missing)} have no outcome")

    # The environment

    def _spend(self, name: str) -> None:
        self._budget = replace(self._budget, **{name: getattr(self._budget, name) - 1})

    def _offer(self) -> None:
        self._offered += 1
        batch = Batch(self._offered)
        self._perform(self._session.offer(batch, [self._now + DELIVERY_TIMEOUT_SECONDS], self._now))

    def _change_topic(self, leader: Leader) -> None:
        topic = leader.state.topics.get(TOPIC)
        new_id = leader.state.chunk + 1
        leader.apply(
            e.TopicCreated(topic_id=new_id, topic=TOPIC, segments=1, token=f"t{new_id}")
            if topic is None
            else e.TopicDeleted(topic_id=topic.topic_id, token=f"t{new_id}")
        )

    def _expendable(self) -> list[int]:
        """Return the producers of which no batch is in flight."""
        newest = self._leaders[-1]
        return [each.producer_id for each in newest.state.producers.values() if each.last_chunk <= newest.durable]

    def _begin_term(self, entries: list[e.AnyEntry]) -> None:
        for leader in self._leaders:
            leader.deposed = True
            leader.waiting.clear()
        epoch = len(self._leaders) + 1
        self._durable += [e.TermStarted(leader_epoch=epoch, instance="a"), *entries]
        leader = Leader(epoch, ShardState(0), [], 0)
        for entry in self._durable:
            leader.apply(entry)
        leader.durable = leader.state.chunk
        self._leaders.append(leader)

    def _announce(self) -> None:
        self._believed = self._leaders[-1].epoch
        self._perform(self._session.follow_leader(self._believed, 8, self._now))

    def _pass_time(self) -> None:
        wake_at = self._session.wake_at
        if wake_at is None:
            raise BrokenPromiseError("a session with unresolved batches waits for nothing")
        self._now = max(self._now, wake_at)
        self._perform(self._session.tick(self._now, 0.0))

    # The leaders

    def _judge_everywhere(self, request: SendBatch | OpenIdentity) -> None:
        for leader in self._leaders[-2:]:
            body = _body(request)
            refusal = judge_term(
                Request(
                    request_id=request.request_id,
                    protocol=PROTOCOL_VERSION,
                    client_id="client",
                    leader_epoch=request.leader_epoch,
                    body=body,
                ),
                leader.epoch,
            )
            if refusal is not None:
                self._refuse(leader, request, refusal)
            elif isinstance(body, ProduceBatch):
                self._judge_batch(leader, request, body)
            else:
                self._open(leader, request, body)

    def _judge_batch(self, leader: Leader, request: SendBatch | OpenIdentity, batch: ProduceBatch) -> None:
        match self._judge(batch, leader.state, leader.durable, self._rules):
            case Refusal() as refusal:
                self._refuse(leader, request, refusal)
            case Duplicate() as known:
                body = Committed(placements=known.placements, topic_id=known.topic_id, duplicate=True)
                self._reply_after(leader, known.chunk, request, body)
            case Accept():
                entry, _ = route_batch(leader.state.topics[TOPIC], batch)
                leader.apply(entry)
                stored = int(batch.records[0].value), entry.topic_id
                self._in_flight_batches[leader.epoch, leader.state.chunk] = stored
                body = Committed(placements=entry.placements, topic_id=entry.topic_id)
                self._reply_after(leader, leader.state.chunk, request, body)

    def _open(self, leader: Leader, request: SendBatch | OpenIdentity, body: OpenProducer) -> None:
        new_id = next(self._producer_ids)
        decided = refuse_access(self._rules, ANONYMOUS, body) or open_producer(
            body, leader.state, user=ANONYMOUS, new_id=new_id, max_named_producers=1
        )
        match decided:
            case Refusal():
                self._refuse(leader, request, decided)
            case Decision():
                for entry in decided.entries:
                    leader.apply(entry)
                self._reply_after(leader, leader.state.chunk, request, decided.answer(leader.state))

    def _refuse(self, leader: Leader, request: SendBatch | OpenIdentity, refusal: Refusal) -> None:
        body = Rejected(verdict=refusal.verdict, reason="")
        chunk = 0
        if refusal.after_barrier:
            leader.state.begin_chunk(leader.state.chunk + 1, 0)
            chunk = leader.state.chunk
        self._reply_after(leader, chunk, request, body)

    def _reply_after(self, leader: Leader, chunk: int, request: SendBatch | OpenIdentity, body: Any) -> None:
        reply = Reply(request_id=request.request_id, leader_epoch=leader.epoch, body=body)
        if chunk <= leader.durable:
            self._replies.append(reply)
        elif not leader.deposed:
            leader.waiting.append((chunk, reply))

    def _commit(self) -> None:
        """Make all chunks of the newest term durable, and send the replies that waited for them."""
        leader = self._leaders[-1]
        for chunk in range(leader.durable + 1, leader.state.chunk + 1):
            stored = self._in_flight_batches.get((leader.epoch, chunk))
            if stored is not None:
                self._store(*stored)
        leader.durable = leader.state.chunk
        self._durable = list(leader.entries)
        self._replies += [reply for _, reply in leader.waiting]
        leader.waiting.clear()

    def _store(self, number: int, topic_id: int) -> None:
        if number in self._stored:
            raise BrokenPromiseError(f"batch {number} is stored twice")
        if self._stored and number < max(self._stored):
            raise BrokenPromiseError(f"batch {number} is stored after batch {max(self._stored)}")
        if self._outcomes.get(number) in (Outcome.FAILED, Outcome.INVALID):
            raise BrokenPromiseError(f"batch {number} is stored, and was reported as {self._outcomes[number]}")
        offset = sum(stored[0] == topic_id for stored in self._stored.values())
        self._stored[number] = (topic_id, 0, offset)

    # The client

    def _answer(self, reply: Reply) -> None:
        if reply.request_id in self._forgotten:
            return
        match reply.body:
            case Committed() as committed:
                self._perform(self._session.committed(reply.request_id, committed, self._now))
            case ProducerIdentity() as identity:
                self._perform(self._session.identified(reply.request_id, identity, self._now))
            case Rejected() as rejected:
                self._perform(self._session.rejected(reply.request_id, reply.leader_epoch, rejected, self._now, 0.0))

    def _perform(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SendBatch() | OpenIdentity():
                    self._requests.append(command)
                case Resolve(Batch() as batch, outcome, reply):
                    self._resolve(batch.number, outcome, reply)
                case _ if hasattr(command, "request_ids"):
                    self._forgotten.update(command.request_ids)

    def _resolve(self, number: int, outcome: Outcome, reply: Committed | None) -> None:
        if number in self._outcomes:
            raise BrokenPromiseError(f"batch {number} has the outcomes {self._outcomes[number]} and {outcome}")
        self._outcomes[number] = outcome
        stored = self._stored.get(number)
        if outcome is Outcome.COMMITTED and stored is None:
            raise BrokenPromiseError(f"batch {number} is reported as committed, and is not durable")
        if outcome in (Outcome.FAILED, Outcome.INVALID) and stored is not None:
            raise BrokenPromiseError(f"batch {number} is reported as {outcome}, and is stored")
        if reply is not None and reply.placements is not None:
            place = reply.placements[0]
            if (reply.topic_id, place.segment, place.first_offset) != stored:
                raise BrokenPromiseError(f"batch {number} is stored at {stored}, and reported at {place}")


def _body(request: SendBatch | OpenIdentity) -> ProduceBatch | OpenProducer:
    if isinstance(request, OpenIdentity):
        return OpenProducer(
            token=request.token,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            accept_new=request.producer_id is not None,
        )
    assert isinstance(request.batch, Batch)
    return request.batch.request(
        producer_id=request.producer_id, producer_epoch=request.producer_epoch, sequence=request.sequence
    )


def _shape(value: Any, now: float, names: dict[Any, int]) -> Hashable:
    """Return ``value`` as nested tuples; request ids as the order of their appearance, times relative to ``now``."""
    match value:
        case None | bool() | str() | bytes():
            return value
        case float():
            return round(value - now, 6)
        case int():
            return ("request", names.setdefault(value, len(names))) if value >= FIRST_REQUEST_ID else value
        case dict():
            return tuple((_shape(key, now, names), _shape(each, now, names)) for key, each in value.items())
        case set() | frozenset():
            return tuple(sorted((_shape(each, now, names) for each in value), key=repr))
        case itertools.count():
            return None
    if hasattr(value, "__iter__") and hasattr(value, "__len__"):
        return tuple(_shape(each, now, names) for each in value)
    if hasattr(value, "__next__"):
        return None
    fields = getattr(value, "__slots__", None) or getattr(value, "__struct_fields__", None) or vars(value)
    return tuple(_shape(getattr(value, name), now, names) for name in fields)
