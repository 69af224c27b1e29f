"""One program's connection to a cluster: presence, leaders, requests, pushes.

Presence is announced with each connection, and revoked by a last will. It is not retained: a leader
that misses it notices missing heartbeats, and the broker keeps nothing of clients that are gone.

A leader is known once it has replied: announcements are only reasons to ask, see
headgate.client.decisions.leader_belief. A refusal by a leader older than the one that was asked is ignored.
"""

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self, TypeVar

import msgspec

from headgate.backoff import BackoffSchedule
from headgate.client.cluster_watch import ClusterWatch, LeaderHandler, LeaderWatch, TopicPlaces
from headgate.client.decisions.leader_belief import CommandDeadline
from headgate.client.decisions.session_batches import RETRY_BACKOFF
from headgate.client.request_attempts import Handlers, ReplyDispatch, ReplyHandler, RequestAttempts, RequestIds
from headgate.errors import CommandUnknownError, HeadgateError, NoLeaderError, RequestRejectedError, rejection
from headgate.log.event_log import get_logger
from headgate.model.layout import ShardMap
from headgate.protocol import codec
from headgate.protocol.replies import Rejected, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION, require_fields, require_name
from headgate.protocol.requests import AnyRequestBody, DescribeLeader, ProduceBatch, Request, is_command
from headgate.settings.arguments import require_seconds, require_type
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import Store, open_store
from headgate.transport.connection_options import MqttTiming, password_warning
from headgate.transport.mqtt import MqttTransport
from headgate.transport.port import Transport

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""For the reply to a request, including a change of leader."""

ValueT = TypeVar("ValueT")

_CLUSTER = msgspec.msgpack.Decoder(codec.ClusterDescription)
_LEADER = msgspec.msgpack.Decoder(codec.LeaderAnnouncement)
_HEAD = msgspec.msgpack.Decoder(codec.HeadAnnouncement)
_CHUNK = msgspec.msgpack.Decoder(codec.ChunkAnnouncement)

log = get_logger(__name__)

_REPEATED: Final = ("not_leader", "unavailable", "expired")
"""Verdicts after which a request is sent again."""


class Client:
    """One connection of one program to one cluster. Use it as an async context manager."""

    def __init__(
        self,
        *,
        transport: Transport,
        store: Store | None,
        cluster: str,
        client_id: str,
        user: str | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
        config: ClientConfig | None = None,
    ) -> None:
        """``transport`` has this client's `will`, if it supports one. ``store`` is for consumers.

        ``config``: where broker and ledger are, for messages, and how long the broker may take.
        """
        self.transport = transport
        self.cluster = cluster
        self.client_id = require_name("client", client_id)
        self.address = codec.client_address(user, client_id)
        self.now_ms = now_ms
        self.rng = rng or random.Random()  # noqa: S311 - jitter and names, no secrets
        self.undecodable_messages = 0
        self.request_ids = RequestIds(self.rng.getrandbits(40) << 20)
        self._store = store
        self.cluster_watch = ClusterWatch(transport, cluster, config)
        self._entered_at_ms: int | None = None
        """None: it is not open."""
        self._leaders: dict[int, LeaderWatch] = {}
        self._watchers: dict[str, Handlers[Callable[[Any], None]]] = {}
        """MQTT topic → who gets its announcements."""
        self.replies = ReplyDispatch(self._count_undecodable, self.cluster_watch.learn)
        self.places = TopicPlaces(self.cluster_watch, self.request, self.rng.random)

    @staticmethod
    def will(cluster: str, client_id: str, user: str | None = None) -> tuple[str, bytes, bool]:
        """Return the last will (topic, payload, retain) for this client's transport."""
        gone = codec.Presence(client_id=client_id, online=False)
        return codec.presence_topic(cluster, codec.client_address(user, client_id)), codec.encode(gone), False

    @classmethod
    def from_config(cls, config: ClientConfig, kind: str, *, with_store: bool = False) -> Self:
        """Return a client over MQTT, not yet entered; ``with_store``: with the ledger's store.

        Raises:
            ConfigError: the password, the options of TLS or the store's URL cannot be used.
        """
        require_type("config", config, ClientConfig)
        config.password()  # A missing file is an error now, and not the reason of a later outage.
        if (advice := password_warning(config, config.broker_host, config.password_file)) is not None:
            log.warning("broker.insecure", broker=config.broker, advice=advice)
        rng = random.Random()  # noqa: S311
        client_id = f"{kind}-{rng.getrandbits(48):012x}"
        transport = MqttTransport(
            config.broker_host,
            config.broker_port,
            client_id,
            will=cls.will(config.cluster, client_id, config.username),
            username=config.username,
            password=config.password,
            tls=config.broker_tls(),
            rng=rng,
            # An attempt that outlives the wait for it would delay the end of the program.
            timing=MqttTiming.for_first_connection(config.broker_timeout_seconds),
        )
        store = open_store(config.ledger_url) if with_store else None
        return cls(
            transport=transport,
            store=store,
            cluster=config.cluster,
            client_id=client_id,
            user=config.username,
            rng=rng,
            config=config,
        )

    @property
    def store(self) -> Store:
        """The ledger's store; raises HeadgateError if this client was built without one."""
        if self._store is None:
            raise HeadgateError("this client has no object store, and consumers read from it: pass store=…")
        return self._store

    @property
    def entered(self) -> bool:
        """Whether it is open."""
        return self._entered_at_ms is not None

    def new_token(self) -> str:
        """Return a random name for one command, under which a leader recognizes its repetitions."""
        return f"{self.rng.getrandbits(128):032x}"

    # Connection

    async def __aenter__(self) -> Self:
        """Start to connect; returns once replies and the cluster description are subscribed."""
        if self.entered:
            raise HeadgateError(f"client {self.client_id} is open already; create another one")
        self.request_ids.require_own_process()
        self.request_ids.loop = asyncio.get_running_loop()
        self._entered_at_ms = self.now_ms()
        self.transport.on_connection(self._on_connection)
        self.transport.on_refusal(self.cluster_watch.refused)
        await self.transport.__aenter__()
        await self._subscribe(
            codec.replies_topic(self.cluster, self.address), "reply", codec.decode_reply, self.replies.dispatch
        )
        await self._subscribe(
            codec.cluster_topic(self.cluster),
            "cluster",
            partial(codec.decode, _CLUSTER),
            self.cluster_watch.described,
            retained=True,
        )
        if self.transport.connected:
            self.publish_presence(online=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.publish_presence(online=False)
        self._entered_at_ms = None
        for watch in self._leaders.values():
            watch.close()
        await self.transport.__aexit__(None, None, None)

    def _on_connection(self, connected: bool) -> None:
        if connected and self.entered:
            self.publish_presence(online=True)
        for watch in self._leaders.values():
            watch.connection_changed(connected)
        self.cluster_watch.connection_changed(connected)

    def publish_presence(self, *, online: bool, qos: int = 0) -> None:
        """Every daemon receives it: with ``qos`` 1 the broker says whether there is one, see `finds_no_daemon`."""
        presence = codec.Presence(client_id=self.client_id, online=online, incarnation=self._entered_at_ms or 0)
        self.transport.publish(codec.presence_topic(self.cluster, self.address), codec.encode(presence), qos=qos)

    # The cluster

    async def shard_map(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> ShardMap:
        """Return the shards of the cluster; raises like `ClusterWatch.description`."""
        await self.cluster_watch.description(timeout_seconds)
        return self.cluster_watch.shards

    async def ledger_id(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> str:
        """See `ClusterWatch.ledger_id`; the store is that of this client, if it has one."""
        return await self.cluster_watch.ledger_id(self._store, timeout_seconds)

    async def watch_leader(self, shard: int) -> None:
        """Subscribe to the leader announcements of ``shard``."""
        watch = self._leader_watch(shard)
        if not watch.watched:
            watch.watched = True
            watch.prompt()
            await self._subscribe(
                codec.leader_topic(self.cluster, shard),
                "leader",
                partial(codec.decode, _LEADER),
                watch.announced,
                retained=True,
            )

    def leader(self, shard: int) -> codec.LeaderAnnouncement | None:
        """Return the leader of ``shard`` that has replied; None if none has, or the shard is not watched."""
        return self._leader_watch(shard).leader

    def unanswered(self, shard: int) -> str:
        """Return why no leader answers for ``shard``, for people."""
        if not self.transport.connected:
            return self.cluster_watch.outage()
        if self.cluster_watch.refusal is not None:
            return self.cluster_watch.refusal[0]
        watch = self._leader_watch(shard)
        topic = codec.requests_topic(self.cluster, shard, self.address)
        if watch.heard_of_leader and not self.transport.is_unheard(topic):
            return watch.said or "its leader does not reply"
        return watch.said or "it has no leader"

    @property
    def finds_no_daemon(self) -> bool:
        """Whether the broker said that no daemon got the newest presence of this client; False if it does not say."""
        return self.transport.is_unheard(codec.presence_topic(self.cluster, self.address))

    def on_leader(self, shard: int, handler: LeaderHandler) -> Callable[[], None]:
        """Call ``handler`` when the leader changes or announces itself; returns a function that removes it."""
        return self._leader_watch(shard).handlers.add(handler)

    def doubt_leader(self, shard: int, leader_epoch: int = 0) -> None:
        """Ask who leads: the leader does not reply, or the one of ``leader_epoch`` refused a request meant for it."""
        self._leader_watch(shard).prompt(leader_epoch)

    def _leader_watch(self, shard: int) -> LeaderWatch:
        if shard not in self._leaders:
            self._leaders[shard] = LeaderWatch(
                shard, send=partial(self._send_question, shard), forget=self.replies.forget, jitter=self.rng.random
            )
            self._leaders[shard].connection_changed(self.transport.connected and self.entered)
        return self._leaders[shard]

    def _send_question(self, shard: int, body: DescribeLeader, handler: ReplyHandler) -> int:
        def answered(reply: Reply) -> None:
            self.cluster_watch.refusal = None
            handler(reply)

        self.cluster_watch.doubt()
        request_id = next(self.request_ids)
        self.replies.expect(request_id, answered)
        self.send(shard, request_id, None, body)
        return request_id

    async def watch_head(self, shard: int, handler: Callable[[int], None]) -> Callable[[], None]:
        """Call ``handler`` with the number of each announced chunk of ``shard``; returns a function that removes it."""
        topic = codec.head_topic(self.cluster, shard)
        return await self._watch(topic, "head", _HEAD, lambda announced: handler(announced.head))

    async def watch_chunks(self, shard: int, handler: Callable[[codec.ChunkAnnouncement], None]) -> Callable[[], None]:
        """Likewise, with what is announced as a chunk of ``shard``. Raises TransportError: the broker refuses."""
        return await self._watch(codec.chunk_topic(self.cluster, shard), "chunk", _CHUNK, handler)

    async def _watch(
        self, topic: str, kind: str, decoder: msgspec.msgpack.Decoder[ValueT], handler: Callable[[ValueT], None]
    ) -> Callable[[], None]:
        watchers = self._watchers.get(topic)
        if watchers is None:
            watchers = self._watchers[topic] = Handlers()
            try:
                await self._subscribe(topic, kind, partial(codec.decode, decoder), partial(_notify, watchers))
            except HeadgateError:
                del self._watchers[topic]  # The next call is refused, too.
                raise
        return watchers.add(handler)

    # Requests

    def max_request_bytes(self, shard: int) -> int:
        """Return the size of the largest request that leaders accept, and the broker, as far as it says so."""
        return self.transport.max_payload_bytes(codec.requests_topic(self.cluster, shard, self.address))

    def send(
        self,
        shard: int,
        request_id: int,
        leader_epoch: int | None,
        body: AnyRequestBody,
        max_term_age_ms: int | None = None,
    ) -> bool:
        """Send one request; False if it was certainly not sent.

        Raises RequestRejectedError: it is larger than any leader accepts.
        """
        request = Request(
            request_id=request_id,
            protocol=PROTOCOL_VERSION,
            client_id=self.client_id,
            leader_epoch=leader_epoch,
            max_term_age_ms=max_term_age_ms,
            ledger_id=self.cluster_watch.ledger,
            body=body,
        )
        payload = codec.encode(request)
        # A batch is limited when its records are accepted. One above the limit of another broker expires unsent.
        limit_bytes = codec.MAX_MESSAGE_BYTES if isinstance(body, ProduceBatch) else self.max_request_bytes(shard)
        if len(payload) > limit_bytes:
            whose = "of the broker's packets" if limit_bytes < codec.MAX_MESSAGE_BYTES else "of a message"
            raise RequestRejectedError(
                "invalid",
                f"the request has {len(payload)} bytes; the limit {whose} is {limit_bytes}: send less at a time",
            )
        qos = int(isinstance(body, DescribeLeader))  # A broker that refuses what asks for a leader says so.
        return self.transport.publish(codec.requests_topic(self.cluster, shard, self.address), payload, qos=qos)

    async def request(
        self, shard: int, body: AnyRequestBody, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS, ledger_id: bytes = b""
    ) -> Reply:
        """Repeat a request to the leader of ``shard`` until it replies; that must be harmless.

        ``ledger_id``: of the ledger that the request is for; empty: of the first leader that is known. No leader begins
        to execute a command once ``timeout_seconds`` have passed: one more round trip learns the leader's clock.

        Raises:
            NoLeaderError: no leader replied in time. A command was not executed and never will be.
            CommandUnknownError: no leader replied in time, and the command may have been executed.
            FencedError: a newer incarnation has replaced this one.
            RequestRejectedError, ConfigError: the leader refuses the request for good, or could not decode it.
        """
        require_fields(body)
        loop = asyncio.get_running_loop()
        deadline = self.request_ids.require_own_loop() + timeout_seconds
        limit = CommandDeadline(deadline) if is_command(body) else None
        schedule = BackoffSchedule(RETRY_BACKOFF, self.rng.random)
        reason = ""
        await self.watch_leader(shard)
        with RequestAttempts(self.replies, self.request_ids) as attempts:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        leader_epoch = await self._leader_epoch(shard)
                        ledger_id = ledger_id or self.cluster_watch.ledger
                        if ledger_id != self.cluster_watch.ledger:
                            reason = "the cluster has another ledger by now"
                            break
                        reply = await self._try_request(shard, attempts, body, leader_epoch, limit)
                except TimeoutError:
                    break
                if reply is None:
                    reason = reason or "its leader does not reply"  # or a quota holds its replies back, as it said
                    self.doubt_leader(shard)
                elif not isinstance(rejected := reply.body, Rejected):
                    return reply
                elif rejected.verdict not in _REPEATED:
                    raise rejection(rejected.verdict, rejected.reason)
                elif limit is not None and rejected.term_age_ms is not None:
                    reason = rejected.reason
                    if limit.learn(reply.leader_epoch, rejected.term_age_ms, loop.time()):
                        continue
                else:
                    reason = rejected.reason
                    if rejected.verdict == "not_leader":
                        self.doubt_leader(shard, reply.leader_epoch)
                pause = min(schedule.next_seconds(), deadline - loop.time())
                if pause <= 0:
                    break
                await asyncio.sleep(pause)
        reason = (self.transport.connected and reason) or self.unanswered(shard)
        waited_seconds = round(timeout_seconds - max(0.0, deadline - loop.time()), 1)
        text = f"shard {shard} of cluster {self.cluster!r}: {reason} (waited {waited_seconds:g} s; see headgate doctor)"
        raise NoLeaderError(text) if limit is None else _not_answered(text, limit)

    async def _leader_epoch(self, shard: int) -> int:
        """Wait until a leader is known and the broker is connected; return its epoch."""
        if (known := self.leader(shard)) is not None and self.transport.connected:
            return known.leader_epoch  # Most requests: no handlers to add and remove.
        changed = asyncio.Event()
        remove_handlers = [
            self.on_leader(shard, lambda _: changed.set()),
            self.cluster_watch.connection_handlers.add(lambda _: changed.set()),
        ]
        try:
            while True:
                known = self.leader(shard)
                if known is not None and self.transport.connected:
                    return known.leader_epoch
                changed.clear()
                await changed.wait()
        finally:
            for remove in remove_handlers:
                remove()

    async def _try_request(
        self,
        shard: int,
        attempts: RequestAttempts,
        body: AnyRequestBody,
        leader_epoch: int,
        limit: CommandDeadline | None,
    ) -> Reply | None:
        """Return the reply; None if there was none, or the leader changed meanwhile."""
        answered = attempts.begin(leader_epoch)
        if answered.done():
            return answered.result()
        remove_handler = self.on_leader(shard, attempts.leader_changed)
        try:
            max_term_age_ms = None if limit is None else limit.max_term_age_ms(leader_epoch)
            if not self.send(shard, attempts.newest_id, leader_epoch, body, max_term_age_ms):
                return None
            if limit is not None:
                limit.sent(leader_epoch)
            async with asyncio.timeout(attempts.timeout_seconds):
                return await answered
        except TimeoutError:
            attempts.unanswered()
            return None
        finally:
            remove_handler()

    # Messages

    async def _subscribe(
        self,
        topic: str,
        kind: str,
        decode: Callable[[bytes], ValueT],
        handle: Callable[[ValueT], None],
        *,
        retained: bool = False,
    ) -> None:
        """Subscribe to ``topic``; count messages that cannot be decoded, and log the first one."""

        def on_message(_: str, payload: bytes) -> None:
            try:
                message = decode(payload)
            except msgspec.DecodeError as error:
                self._count_undecodable(kind, error)
                return
            named = getattr(message, "ledger_id", None)  # A chunk names its term.
            if kind in ("cluster", "chunk") or named == self.cluster_watch.ledger:
                handle(message)

        await self.transport.subscribe(topic, on_message, retained=retained, optional=kind == "chunk")

    def _count_undecodable(self, kind: str, error: msgspec.DecodeError) -> None:
        self.undecodable_messages += 1
        if self.undecodable_messages == 1:
            about = {"cluster": self.cluster, "client_id": self.client_id}
            log.warning("message.undecodable", kind=kind, reason=str(error), **about)


def _notify(watchers: Handlers[Callable[[ValueT], None]], message: ValueT) -> None:
    for handler in watchers:
        handler(message)


def _not_answered(text: str, limit: CommandDeadline) -> NoLeaderError:
    if limit.may_be_executed:
        return CommandUnknownError(
            f"{text}; unknown outcome: the command may have been executed. It will not be begun later: "
            "look what is there, and repeat it if necessary"
        )
    return NoLeaderError(f"{text}; the command was not executed, and will not be later")


class ClientLease:
    """The connection of a producer, consumer or administrator: one that its program shares, or one of its own."""

    def __init__(
        self, given: ClientConfig | Client, kind: str, timeout_seconds: float, *, with_store: bool = False
    ) -> None:
        """Describe the connection. Nothing is connected yet.

        ``kind`` and ``with_store`` are for a client of its own; see `Client.from_config`. ``timeout_seconds`` is for
        connecting. Raises ConfigError.
        """
        self.timeout_seconds = require_seconds("connect_timeout_seconds", timeout_seconds)
        self.opened = False
        self.client = given if isinstance(given, Client) else Client.from_config(given, kind, with_store=with_store)
        self._kind, self._owned = kind, not self.client.entered

    async def open(self) -> None:
        """Connect, and wait for the description of the cluster. If that fails, nothing stays open.

        Raises NoLeaderError or TransportError. HeadgateError: it is open, or a fork has copied the client of its own.
        """
        if self.opened:
            raise HeadgateError(f"this {self._kind} is open already; create another one")
        if self._owned:
            await self.client.__aenter__()
        self.client.request_ids.require_own_loop()
        try:
            await self.client.shard_map(self.timeout_seconds)
        except BaseException:
            await self.close()
            raise
        self.opened = True

    def require_own_loop(self) -> float:
        """Return the time of the client's event loop. Raises HeadgateError: another one runs, or nothing is open."""
        if not self.opened:
            raise HeadgateError(f"this {self._kind} is closed or is not open; use it as an async context manager")
        return self.client.request_ids.require_own_loop()

    async def close(self) -> None:
        self.opened = False
        if self._owned:
            await self.client.__aexit__(None, None, None)
