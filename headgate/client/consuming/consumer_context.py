"""What the parts of one consumer share: its requests to the leader, its tasks, and the first failure."""

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any, Final, TypedDict, get_args

from msgspec.structs import asdict

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.acknowledger import Acknowledger
from headgate.client.consuming.record_feed import RecordFeed
from headgate.client.decisions.session_batches import NamedProgram
from headgate.client.decisions.unstored_acknowledgements import AcknowledgementBatch
from headgate.client.request_attempts import BodyT, body_of
from headgate.errors import ConfigError, HeadgateError, OtherHistoryError, rejection
from headgate.log.event_log import EventLogger
from headgate.model.entries import Balance, Order, SubscriptionType
from headgate.model.headers import Origin
from headgate.model.identifiers import Offset, SegmentId, keeper_of
from headgate.model.positions import KnownHistory, PositionToken, decode_positions
from headgate.process.background import end_tasks
from headgate.protocol import replies, requests
from headgate.protocol.request_fields import MAX_CAPACITY_PERCENT, MAX_HELD_SEGMENTS, Behind, Start, shared_name
from headgate.settings.arguments import require_choice

MAX_CHARACTERS: Final = 128
"""Limit of the protocol. A host name has up to 64 on Linux."""
_UNPRINTABLE: Final = re.compile(r"[^!-~]")


def host_name() -> str:
    """Return the name of this machine. It is for people, as is `library_version`; nothing is decided by it."""
    return program_text(socket.gethostname())


@cache
def library_version() -> str:
    """Return the version of this library; empty if it runs from files that no distribution installed."""
    try:
        return program_text(version("headgate-client"))
    except PackageNotFoundError:
        return ""


def program_text(text: str) -> str:
    """Return ``text`` as the protocol allows it: other characters become question marks, and its end is cut off."""
    return _UNPRINTABLE.sub("?", text)[:MAX_CHARACTERS]


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    kind: SubscriptionType
    start: Start
    order: Order | None
    balance: Balance | None
    capacity: float
    reads_source: bool
    behind: Behind

    def __post_init__(self) -> None:
        require_choice("start", self.start, get_args(Start))
        require_choice("behind", self.behind, get_args(Behind))
        require_choice("order", self.order, (*get_args(Order), None))
        require_choice("balance", self.balance, (*get_args(Balance), None))
        if not isinstance(self.capacity, Real) or not 1 <= self.capacity * 100 <= MAX_CAPACITY_PERCENT:
            raise ConfigError(
                f"capacity={self.capacity!r:.60}: use 0.01 to {MAX_CAPACITY_PERCENT / 100:g}; "
                "an ordinary consumer has 1.0"
            )
        if self.capacity != 1 and self.balance == "count":
            raise ConfigError(f'capacity={self.capacity:g} has no effect with balance="count": use balance="load"')


class _Member(TypedDict):
    topic: str
    subscription: str
    consumer: str
    incarnation: int


class ConsumerRequests:
    """Sends the requests of one member to its leader.

    Every method raises NoLeaderError if no leader replies in time, and RequestRejectedError if the leader refuses.
    """

    def __init__(
        self, client: Client, *, topic: str, subscription: str, consumer: str, options: ConsumerOptions
    ) -> None:
        self._client = client
        self._member = _Member(topic=topic, subscription=subscription, consumer=consumer, incarnation=0)
        self._options = options
        self._shard = 0
        self.history = KnownHistory()
        """What this member has read. Each leader compares it with its own history."""
        self.topic_id: int | None = None
        """The topic whose positions this member has; None: it has none, and has not registered."""
        self.ledger_id = ""
        self.subscription_id = 0
        """The subscription of the last registration; 0 before the first one."""

    def use_positions(self, text: str) -> PositionToken:
        """Return the positions in ``text``, at which this member continues; raises ConfigError if it cannot."""
        token = decode_positions(text)
        if token.topic != self._member["topic"]:
            raise ConfigError(f"positions: they are of topic {token.topic!r}, not of {self._member['topic']!r}")
        self.topic_id, self.ledger_id, self.history = token.topic_id, token.ledger_id, KnownHistory(token.history)
        return token

    def positions_text(self, positions: Mapping[SegmentId, Offset], held: Iterable[SegmentId]) -> str:
        """Return ``positions`` with what they belong to; raises HeadgateError if nothing is known yet."""
        if self.topic_id is None:
            raise HeadgateError("this consumer has no positions before it is entered")
        token = PositionToken(
            self._member["topic"], self.topic_id, self.ledger_id, dict(positions), sorted(held), self.history.points
        )
        return token.encode()

    async def open(self, shard: int, incarnation: int, timeout_seconds: float) -> None:
        """Set what is known at entry: ``incarnation`` is its time in milliseconds. Raises like `Client.ledger_id`."""
        self.ledger_id = await self._client.ledger_id(timeout_seconds)
        self._shard = shard
        self._member["incarnation"] = incarnation

    @property
    def push_key(self) -> tuple[str, str, str, int]:
        """Topic, subscription, name and incarnation, by which the leader's messages to this member are found."""
        member = self._member
        return member["topic"], member["subscription"], member["consumer"], member["incarnation"]

    @property
    def keeper(self) -> str:
        """The subscription of the dead-letter topic that keeps the parked records of this one."""
        return keeper_of(self._shard, self.subscription_id)

    def dead_letter_producer(self, alive: replies.HeartbeatReply) -> NamedProgram:
        """Return the producer of this subscription's dead letters. Its senders share it, of whichever user."""
        return NamedProgram(shared_name(self.keeper, alive.sender_secret), alive.sender_since_ms, alive.sender_secret)

    async def register(
        self, positions: Mapping[SegmentId, Offset], timeout_seconds: float
    ) -> tuple[replies.Registered, int]:
        """Register; return the reply and the epoch of the leader that sent it.

        Of the ``positions`` of a CHECKPOINT consumer the leader judges those of the newest segments; it prunes
        the oldest first.
        """
        options, history = self._options, self.history.points
        own = sorted(positions.items())[-MAX_HELD_SEGMENTS:] if options.kind == SubscriptionType.CHECKPOINT else []
        registered, leader_epoch = await self._ask(
            requests.RegisterConsumer(
                **self._member,
                history=history,
                subscription_type=options.kind,
                start=options.start,
                order=options.order,
                external=options.reads_source,
                balance=options.balance,
                capacity=round(options.capacity * 100),
                supports_bucket_ranges=options.kind != SubscriptionType.CHECKPOINT and not options.reads_source,
                subscription_id=self.subscription_id or None,
                host=host_name(),
                version=library_version(),
                positions=[(int(segment), int(offset)) for segment, offset in own],
                positions_topic_id=self.topic_id if own else None,
                behind=options.behind,
            ),
            replies.Registered,
            timeout_seconds,
        )
        self.history.confirmed(history, registered.head, registered.term_id)
        self.topic_id = registered.topic_id
        self.subscription_id = registered.subscription_id
        return registered, leader_epoch

    async def heartbeat(
        self,
        held: list[tuple[int, int]],
        unhandled: list[tuple[int, int, int | None]],
        *,
        asks_unread: bool = False,
        problem: str = "",
        ready: bool = False,
        follows: bool = False,
    ) -> replies.HeartbeatReply:
        """Say that this member is alive; ``held``: (segment, generation) of all it holds.

        ``unhandled``: see `Heartbeat`. ``problem``: why it could not send dead letters. ``ready``: whether the program
        has asked for a record lately. ``follows``: whether it takes announced chunks.
        """
        history = self.history.points
        body = requests.Heartbeat(
            **self._member,
            history=history,
            held=held,
            asks_unread=asks_unread,
            dead_letter_problem=problem,
            ready=ready,
            unhandled=unhandled,
            follows=follows,
        )
        alive, _ = await self._ask(body, replies.HeartbeatReply)
        self.history.confirmed(history, alive.head, alive.term_id)
        return alive

    async def acknowledge(self, batch: AcknowledgementBatch, number: int) -> replies.Acknowledged:
        """Store acknowledgements; ``number`` rises with each call. See `AcknowledgeBatch`."""
        body = requests.AcknowledgeBatch(**self._member, history=self.history.points, number=number, **asdict(batch))
        return (await self._ask(body, replies.Acknowledged))[0]

    async def begin(self, records: list[requests.BegunRecord]) -> replies.DeliveriesBegun:
        body = requests.BeginDeliveries(**self._member, history=self.history.points, records=records)
        return (await self._ask(body, replies.DeliveriesBegun))[0]

    def origin(self, letter: replies.DeadLetter) -> Origin:
        assert self.topic_id is not None, "only a member gets dead letters"
        return Origin(
            ledger=self.ledger_id,
            topic=self._member["topic"],
            topic_id=self.topic_id,
            subscription=self._member["subscription"],
            subscription_id=self.subscription_id,
            segment=letter.segment,
            offset=letter.offset,
            deliveries=letter.deliveries,
            reason=letter.reason,
            died_at_ms=letter.died_at_ms,
            parked_number=letter.parked_number,
        )

    def is_own(self, origin: Origin) -> bool:
        """Return whether a dead letter is of this member's subscription."""
        return origin.is_of(self.ledger_id, self._member["topic"], self.topic_id, self.subscription_id)

    async def park(self, record: ConsumedRecord, reason: str, parking: int) -> None:
        """Park the key of ``record`` for every later holder of its segment."""
        body = requests.ParkKey(
            **self._member,
            history=self.history.points,
            segment=record.segment,
            generation=record.generation,
            offset=record.offset,
            key=record.key,
            number=record.parked_number,
            parking=parking,
            reason=reason,
        )
        await self._ask(body, replies.Done)

    async def unpark(self, named: replies.ResumingKey) -> None:
        """End the parking of a key, all of whose parked records were processed."""
        body = requests.UnparkKey(
            **self._member,
            history=self.history.points,
            segment=named.segment,
            generation=named.generation,
            key=named.key,
            parking=named.parking,
            last=named.last,
        )
        await self._ask(body, replies.Done)

    async def confirm_dead_letters(self, stored: list[tuple[int, int]]) -> None:
        await self._ask(
            requests.ConfirmDeadLetters(**self._member, history=self.history.points, stored=stored), replies.Done
        )

    async def confirm(self, released: list[tuple[int, int]]) -> None:
        """Confirm that this member has stopped reading segments; ``released``: (segment, generation) of each."""
        await self._ask(requests.ConfirmRevoked(**self._member, released=released), replies.Done)

    async def leave(self, timeout_seconds: float, *, failed: bool) -> None:
        """Give up the membership. ``failed``: because the program ended with an error."""
        await self._ask(requests.LeaveConsumer(**self._member, failed=failed), replies.Done, timeout_seconds)

    async def _ask(
        self, request: requests.AnyRequestBody, kind: type[BodyT], timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> tuple[BodyT, int]:
        """Return the reply, which has to be of type ``kind``, and the epoch of the leader that sent it."""
        if self.ledger_id != (now := self._client.cluster_watch.ledger.hex()):
            reason = f"it began with the ledger {self.ledger_id}, and the cluster has the ledger {now}: start it again"
            raise rejection("other_history", f"consumer {self._member['consumer']!r}: {reason}")
        # The cluster may change its ledger while the request waits for a leader.
        ledger_id = bytes.fromhex(self.ledger_id)
        try:
            reply = await self._client.request(self._shard, request, timeout_seconds, ledger_id)
        except OtherHistoryError as error:  # Of two copies of a ledger, perhaps, which have one id.
            leader = self._client.leader(self._shard)
            led = "" if leader is None else f"Daemon {leader.instance!r} leads shard {self._shard}; "
            raise OtherHistoryError(error.verdict, f"{error}. {led}{self._client.cluster_watch.urls}") from None
        return body_of(reply, kind, f"the leader of shard {self._shard}"), reply.leader_epoch


class ConsumerTasks:
    """Starts tasks. A vital one that fails ends the consumer, because it would be silent without it."""

    def __init__(self, consumer: str, log: EventLogger) -> None:
        self.failure: HeadgateError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._consumer = consumer
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str, *, is_vital: bool = True) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._consumer}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_done if is_vital else self._tasks.discard)
        return task

    def fail(self, error: HeadgateError) -> None:
        """Record that the consumer cannot continue. Only the first failure counts."""
        if self.failure is None:
            self.failure = error
            self._log.error("consumer.failed", reason=str(error))
            self.on_failure()

    async def cancel(self) -> None:
        """Cancel all tasks but the calling one, and wait until they have ended."""
        await end_tasks(*(task for task in self._tasks if task is not asyncio.current_task()))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, HeadgateError):
            self.fail(error)
        elif error is not None:
            # A bug: the iterator raises it, with its own traceback as the cause.
            failure = HeadgateError(f"{task.get_name()} failed: {error!r}")
            failure.__cause__ = error
            self.fail(failure)


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What the parts of one consumer share."""

    kind: SubscriptionType
    client: Client
    requests: ConsumerRequests
    feed: RecordFeed
    acknowledger: Acknowledger
    tasks: ConsumerTasks
    log: EventLogger
