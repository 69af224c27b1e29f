"""What a client learns of its cluster: its description, who leads each shard, and which shard has a topic."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from headgate.backoff import Backoff, BackoffSchedule
from headgate.client.decisions.leader_belief import LeaderBelief, Question
from headgate.client.request_attempts import Handlers, body_of
from headgate.errors import (
    LedgerError,
    NoLeaderError,
    ProtocolError,
    RequestRejectedError,
    StoreUnavailableError,
    TransportError,
)
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.objects import IDENTITY_PATH
from headgate.log.event_log import get_logger
from headgate.model.layout import ShardMap
from headgate.process.background import end_tasks
from headgate.protocol.codec import ClusterDescription, LeaderAnnouncement
from headgate.protocol.replies import LeaderReply, Rejected, Reply, TopicPlace
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import AnyRequestBody, DescribeLeader, FindTopic
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import Store
from headgate.transport.port import Transport

STORE_RETRY_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 10.0
"""Daemons that hear the description of another ledger repeat theirs, a few seconds later."""
_REMEDY: Final = "Correct ledger_url of this client, or mount the cluster's ledger there"
log = get_logger(__name__)
MAX_QUESTIONS: Final = 16
"""Earlier questions that may still be answered."""
LeaderHandler = Callable[[LeaderAnnouncement], None]
SendQuestion = Callable[[DescribeLeader, Callable[[Reply], None]], int]
"""Send the body to the shard's leaders; each reply goes to the handler. Returns the request id."""
T = TypeVar("T")
AskLeader = Callable[[int, AnyRequestBody, float], Awaitable[Reply]]
RETRY_BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=1.0, jitter=0.2)


class ClusterWatch:
    """Waits until the broker accepts a connection and a daemon has described the cluster, and says what is missing.

    A refusal by the broker counts until the first connection. Later refusals are an outage: an operator changes a
    password.
    """

    def __init__(self, transport: Transport, cluster: str, config: ClientConfig | None) -> None:
        """``config`` says how long the first connection may take; None: as long as the caller waits."""
        self._transport = transport
        self._cluster = cluster
        self.broker = "the broker" if config is None else f"the broker at {config.broker}"
        """Where it is, and which file says so, for messages."""
        self._ledger_url = "the store" if config is None else config.ledger_url
        self._broker_timeout_seconds = None if config is None else config.broker_timeout_seconds
        self._broker_answered = asyncio.Event()
        """It has accepted a connection, or refused the first one."""
        self.refusal: tuple[str, bool] | None = None
        """Why the broker refuses this client, or its requests, and whether it was the first connection."""
        self._described = asyncio.Event()
        self._description: ClusterDescription | None = None
        self._incompatible_protocol: int | None = None
        self.ledger = b""
        """Each request and reply names it; empty before a daemon has described the cluster."""
        self._other: ClusterDescription | None = None
        """The newest one of another ledger, since the own ledger was described."""
        self._silent_at = 0.0
        """When daemons of the own ledger would have answered the first such description."""
        self.shards = ShardMap(())
        """The shards of the cluster; none before it is described."""
        self.connection_handlers: Handlers[Callable[[bool], None]] = Handlers()
        """Called at each connection and loss."""

    # Events

    def connection_changed(self, connected: bool) -> None:
        if connected:
            self.refusal = None
            self._broker_answered.set()
        for handler in self.connection_handlers:
            handler(connected)

    def refused(self, reason: str) -> None:
        if not self._broker_answered.is_set():
            self.refusal = reason, True
            self._broker_answered.set()
        elif self.refusal is None:
            self.refusal = reason, False
            log.error("broker.refuses", broker=self.broker, reason=reason)

    def described(self, description: ClusterDescription) -> None:
        if self.ledger and bytes.fromhex(description.ledger_id) != self.ledger:
            self._heard_of_other(description)
            return
        self._other = None
        if description.protocol != PROTOCOL_VERSION:
            # Requests that are in progress are refused: each one carries this client's version.
            log.error(
                "cluster.protocol_mismatch",
                cluster=self._cluster,
                cluster_protocol=description.protocol,
                client_protocol=PROTOCOL_VERSION,
            )
            self._incompatible_protocol = description.protocol
        else:
            self._description, self._incompatible_protocol = description, None
            self.ledger = bytes.fromhex(description.ledger_id)
            self.learn([*description.earlier_shards, description.shards])
        self._described.set()

    def _heard_of_other(self, description: ClusterDescription) -> None:
        """Keep the description of another ledger under the cluster's name."""
        if not description.ledger_id:
            return  # Of a daemon that does not know its ledger.
        if self._other is None:
            self._silent_at = asyncio.get_running_loop().time() + SILENT_SECONDS
            about = {"ledger_id": self.ledger.hex(), "other_ledger_id": description.ledger_id}
            log.error("cluster.other_ledger", cluster=self._cluster, **about, other_ledger_url=description.ledger_url)
        self._other = description

    def doubt(self) -> None:
        """No leader has replied so far: use the other ledger that is described, if no daemon describes this one again.

        The cluster was moved, or set up again under its name. Or it is down, and another one has that name.
        """
        if self._other is not None and asyncio.get_running_loop().time() >= self._silent_at:
            self.shards, self.ledger = ShardMap(()), b""
            self.described(self._other)

    def learn(self, counts: list[int]) -> None:
        """Keep the longest list of the numbers of shards. A daemon or leader may be late, and know a shorter one."""
        found = ShardMap.read(counts)
        if found is not None and found.extends(self.shards.counts):
            self.shards = found

    # Questions

    async def description(self, timeout_seconds: float) -> ClusterDescription:
        """Wait for the cluster's description.

        Raises:
            NoLeaderError: no daemon has published it in time.
            TransportError: the broker and this program refuse each other; waiting does not help.
            ProtocolError: the cluster runs another version of the protocol; waiting does not help.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self._reach_broker(timeout_seconds)
        try:
            async with asyncio.timeout_at(deadline):
                await self._described.wait()
        except TimeoutError:
            if not self._transport.connected:
                raise self._unreachable(timeout_seconds) from None
            raise NoLeaderError(
                f"found no daemon of cluster {self._cluster!r} through {self.broker} (waited {timeout_seconds:g} s); "
                "is one running, is that its name, and does the broker's access list (headgate access export) allow "
                "this user?"
            ) from None
        if self._incompatible_protocol is not None:
            raise ProtocolError(
                f"cluster {self._cluster!r} runs protocol {self._incompatible_protocol}, this client "
                f"{PROTOCOL_VERSION}: install the version of headgate that the cluster runs"
            )
        assert self._description is not None, "signalled without a description"
        return self._description

    @property
    def urls(self) -> str:
        """Where this program and the daemons have the ledger, as one sentence without a full stop."""
        theirs = (
            "" if self._description is None else f", and the daemons say that they use {self._description.ledger_url}"
        )
        return f"this program reads {self._ledger_url}{theirs}"

    async def ledger_id(self, store: Store | None, timeout_seconds: float) -> str:
        """Return the id of the cluster's ledger; empty if no daemon knows it. ``store``: has to have that ledger.

        Raises like `description`, and:
            LedgerError: the store has another ledger, or none.
            StoreUnavailableError: the store was unreachable all the time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        described = await self.description(timeout_seconds)
        url, theirs = self._ledger_url, f"the daemons of cluster {self._cluster!r} use "
        theirs += f"{described.ledger_url} with id {described.ledger_id}"
        while store is not None and described.ledger_id:
            try:
                found = await read_ledger_id(store, url)
            except StoreUnavailableError as error:
                if loop.time() + STORE_RETRY_SECONDS >= deadline:
                    raise StoreUnavailableError(f"{IDENTITY_PATH} of {url} cannot be read: {error}; {theirs}") from None
                log.warning("ledger.unverified", url=url, reason=str(error))
                await asyncio.sleep(STORE_RETRY_SECONDS)
                continue
            if found is None:
                raise LedgerError(f"{url} has no object {IDENTITY_PATH}, so it is no ledger: {theirs}. {_REMEDY}")
            if found != described.ledger_id:
                raise LedgerError(f"{url} is another ledger, with id {found}: {theirs}. {_REMEDY}")
            break
        return described.ledger_id

    def outage(self) -> str:
        return f"cannot reach {self.broker}: {self._transport.unreachable_reason or 'no connection yet'}"

    async def _reach_broker(self, timeout_seconds: float) -> None:
        """Return once the broker has accepted a connection. Raises NoLeaderError or TransportError."""
        if self._broker_timeout_seconds is not None:
            timeout_seconds = min(timeout_seconds, self._broker_timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._broker_answered.wait()
        except TimeoutError:
            raise self._unreachable(timeout_seconds) from None
        if self.refusal is not None and self.refusal[1]:
            raise TransportError(f"cannot reach {self.broker}: {self.refusal[0]}")

    def _unreachable(self, waited_seconds: float) -> NoLeaderError:
        return NoLeaderError(f"{self.outage()} (waited {waited_seconds:g} s); is it running, and is that its address?")


@dataclass(eq=False, repr=False)
class LeaderWatch:
    """Asks who leads one shard, and tells those who want to know.

    headgate.client.decisions.leader_belief decides when to ask and what to believe. Questions go the
    way of requests. Answers arrive on the client's own topic, to which only daemons may publish.
    """

    shard: int
    send: SendQuestion
    forget: Callable[[int], None]
    """Gets the ids of requests whose replies are no longer expected."""
    jitter: Callable[[], float]
    handlers: Handlers[LeaderHandler] = field(default_factory=Handlers)
    """Called when the leader changes, and when it announces itself again."""
    heard_of_leader: bool = False
    said: str = ""
    """Why a leader refused to say whether it leads: a quota holds its replies back. Empty: it did not."""
    watched: bool = False
    """Whether the announcements on the topic of this shard are subscribed."""
    _belief: LeaderBelief = field(default_factory=LeaderBelief)
    _questions: deque[int] = field(default_factory=deque)
    _connected: bool = False
    _timer: asyncio.TimerHandle | None = None

    @property
    def leader(self) -> LeaderAnnouncement | None:
        return self._belief.leader

    def announced(self, announcement: LeaderAnnouncement) -> None:
        """Consider an announcement on the topic of this shard; one for another shard is not ours."""
        if announcement.shard != self.shard:
            return
        self.heard_of_leader = True
        if self._belief.announced(announcement, asyncio.get_running_loop().time()):
            self._notify(announcement)
        self._set_timer()

    def prompt(self, heard_epoch: int = 0) -> None:
        self._belief.prompt(asyncio.get_running_loop().time(), heard_epoch)
        self._set_timer()

    def connection_changed(self, connected: bool) -> None:
        """Ask again what was asked during the outage."""
        self._connected = connected
        if connected and self._belief.ask_at is not None:
            self._ask()
        else:
            self._set_timer()

    def close(self) -> None:
        self._connected = False
        self._set_timer()

    def _ask(self) -> None:
        question = self._belief.ask(asyncio.get_running_loop().time(), self.jitter())
        body = DescribeLeader(heard_epoch=question.heard_epoch)
        self._questions.append(self.send(body, partial(self._on_reply, question)))
        if len(self._questions) > MAX_QUESTIONS:
            self.forget(self._questions.popleft())
        self._set_timer()

    def _on_reply(self, question: Question, reply: Reply) -> None:
        match reply.body:
            case LeaderReply(instance=instance, window=window):
                epoch, ledger_id = reply.leader_epoch, reply.ledger_id
                leader = LeaderAnnouncement(
                    shard=self.shard, leader_epoch=epoch, instance=instance, window=window, ledger_id=ledger_id
                )
                if self._belief.answered(question, leader):
                    self._notify(leader)
                self._set_timer()
                self.said = ""
            case Rejected(reason=reason):
                self.said = reason

    def _notify(self, leader: LeaderAnnouncement) -> None:
        for handler in self.handlers:
            handler(leader)

    def _set_timer(self) -> None:
        ask_at = self._belief.ask_at if self._connected else None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if ask_at is None:
            return
        loop = asyncio.get_running_loop()
        if ask_at <= loop.time():
            self._ask()
        else:
            self._timer = loop.call_at(ask_at, self._ask)


@dataclass(eq=False, repr=False)
class TopicPlaces:
    """Finds the shard of a topic. In a cluster that has grown, leaders say which of its places has it.

    1. If the places (`headgate.model.layout`) are one shard, there is nothing to ask. Otherwise all are asked at once.
    2. What is remembered is a hint. A leader whose shard does not have the topic refuses a request for it, and then the
       place is forgotten and looked for again: the topic may have been deleted, and created elsewhere.
    3. Before a topic is created, every other place has to say that it does not have it, by the list that the creation
       names; why that remains so: `shard.requests.topic_commands`. A leader that knows a shorter list is asked again.
    """

    watch: ClusterWatch
    request: AskLeader
    """`Client.request`."""
    draw: Callable[[], float]
    """Returns a random number below 1."""
    _found: dict[tuple[bytes, str], int] = field(default_factory=dict)
    """(ledger, topic) → its shard."""

    async def shard_of(self, topic: str, timeout_seconds: float) -> int:
        """Return the shard that has ``topic``, or the one to create it on. Raises like `Client.request`."""
        await self.watch.description(timeout_seconds)
        if (found := self._found.get((self.watch.ledger, topic))) is not None:
            return found
        return (await self.find(topic, timeout_seconds, proof=False))[0]

    async def find(self, topic: str, timeout_seconds: float, *, proof: bool = True) -> tuple[int, list[int]]:
        """Return the shard that has ``topic`` or, if none has, the one on which to create it; and the list for that.

        With ``proof`` no other shard will ever have it, by this list of numbers. Raises like `Client.request`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self.watch.description(timeout_seconds)
        several = len(self.watch.shards.candidates(topic)) > 1
        found = await self._look(topic, deadline, proof=proof) if several else None
        shards = self.watch.shards
        return shards.candidates(topic)[0] if found is None else found, list(shards.counts)

    async def at(self, topic: str, ask: Callable[[int], Awaitable[T]], timeout_seconds: float) -> T:
        """Return what ``ask`` returns for the shard of ``topic``. After a refusal there, where it is by now."""
        while True:
            shard = await self.shard_of(topic, timeout_seconds)
            try:
                return await ask(shard)
            except RequestRejectedError as error:
                if error.verdict != "invalid" or not self.forget(topic):
                    raise
                if await self.shard_of(topic, timeout_seconds) == shard:
                    raise

    def forget(self, topic: str) -> bool:
        """Forget where ``topic`` is, because the leader there does not have it. False: it can be nowhere else."""
        self._found.pop((self.watch.ledger, topic), None)
        return len(self.watch.shards.candidates(topic)) > 1

    async def _look(self, topic: str, deadline: float, *, proof: bool) -> int | None:
        """Ask until a place says that it has ``topic``, or all say that they do not; with ``proof``: and never will."""
        loop, pauses = asyncio.get_running_loop(), BackoffSchedule(RETRY_BACKOFF, self.draw)
        self.forget(topic)
        while True:
            ledger_id, shards = self.watch.ledger, self.watch.shards
            answers = await self._ask(topic, shards.candidates(topic), deadline - loop.time())
            if isinstance(answers, int):
                self._found[ledger_id, topic] = answers
                return answers
            if self.watch.shards != shards:
                continue  # A leader knew more shards.
            if not proof or all(tuple(each.shards) == shards.counts for each in answers):
                return None
            pause = pauses.next_seconds()
            if loop.time() + pause >= deadline:
                raise NoLeaderError(f"topic {topic!r}: a shard has yet to store that the cluster has {shards.shards}")
            await asyncio.sleep(pause)

    async def _ask(self, topic: str, places: Sequence[int], timeout_seconds: float) -> int | list[TopicPlace]:
        """Return the place that says that it has ``topic``, or what all say."""

        async def ask(shard: int) -> tuple[int, TopicPlace]:
            reply = await self.request(shard, FindTopic(topic=topic), timeout_seconds)
            place = body_of(reply, TopicPlace, f"the leader of shard {shard}")
            self.watch.learn(place.shards)
            return shard, place

        asked = [asyncio.create_task(ask(shard)) for shard in places]
        try:
            for done in asyncio.as_completed(asked):
                with suppress(NoLeaderError):  # Another place may have it.
                    shard, place = await done
                    if place.topic_id is not None:
                        return shard
            return [each.result()[1] for each in asked]
        finally:
            await end_tasks(*asked)
