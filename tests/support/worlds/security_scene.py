"""Honest users at work on a cluster with access control, and an attacker with valid credentials beside them.

`Scene.attacked` carries out one attack and checks everything that no attack may change: the ledger gains what honest
users did and nothing else, and their consumer receives each of their records once and in order.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.harness.raw_client import RawClient
from headgate import Admin, Consumer, Producer
from headgate.files.tls import client_context
from headgate.model import entries as e
from headgate.protocol import codec
from headgate.protocol.codec import replies_topic, requests_topic
from headgate.protocol.replies import AnyReplyBody, Rejected, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import AnyRequestBody, Request
from headgate.views.topics import TopicInfo
from tests.support.samples.chunks import record_rows
from tests.support.servers.cluster import ONE_USER_OF_EACH_ROLE, Daemon, SecuredTestCluster
from tests.support.servers.programs import metric, wait_until
from tests.support.waiting import until

ACCESS = f"""
{ONE_USER_OF_EACH_ROLE}
[[users.team]]
role = "administrator"
topics = ["team-*"]
[[users.rival]]
role = "producer"
topics = ["orders", "other"]
[[users.stranger]]
role = "producer"
topics = ["other"]
[[users.colleague]]
role = "consumer"
topics = ["orders"]
subscriptions = ["billing"]
[[users.snoop]]
role = "consumer"
topics = ["orders"]
subscriptions = ["snoop"]
[[users.sensor]]
role = "device"
topics = ["other"]
[quotas.users.team]
topics = 1
[quotas.users.stranger]
requests_per_second = 20
producers = 1
"""
"""Honest: operator, shop, billing, gateway. The others attack with their own credentials."""
HONEST_PRODUCER = "shop"

TOPIC, SUBSCRIPTION, CONSUMER, PRODUCER = "orders", "billing", "b-1", "import-1"
REPLY_SECONDS = 60.0


@dataclass(frozen=True)
class Metric:
    """A metric of the daemon that counts the refusal."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BrokerLog:
    """A line of the broker's log. The broker alone refuses the act, and publishes no metric of single clients."""

    pattern: str
    """``{id}`` is the attacker's client id."""


@dataclass(frozen=True)
class Unseen:
    """Nothing on the servers shows the act; ``why`` says what else does."""

    why: str


Evidence = Metric | BrokerLog | Unseen


@dataclass(frozen=True)
class Attack:
    """``user`` tries ``act``, gets ``outcome``, and operators find it in ``seen``."""

    user: str
    act: str
    attempt: Callable[[Scene, str], Awaitable[str]]
    """Returns the outcome that the attacker sees."""
    outcome: str
    seen: Evidence
    allowed: tuple[type[e.Entry], ...] = ()
    """Entries that the act may leave in the ledger, because they change nothing for other users."""

    def __str__(self) -> str:
        return f"{self.user}-{self.act}".replace(" ", "-")


class Scene:
    """A cluster with one named producer, one consumer and one device; the topic has one segment."""

    def __init__(self, folder: Path) -> None:
        self.cluster = SecuredTestCluster(folder, shards=1, access=ACCESS, tls=True)
        self.producer_id = 0
        self.leader_epoch = 0
        self.producer_token = ""
        self.topic_id = 0
        self.consumer_client_id = ""
        self.incarnation = 0
        self.generation = 0
        self.daemon: Daemon
        self._numbers = itertools.count()
        self._sent: list[bytes] = []
        self._rounds = 0
        self._read_to = 0
        """The newest chunk that `_connected` has read."""
        self._is_connected = True
        self._metric_formats = itertools.cycle(("text/plain", "application/openmetrics-text"))
        self._request_ids = itertools.count(1)
        self._attackers: dict[str, RawClient] = {}
        self._replies: dict[int, asyncio.Future[AnyReplyBody]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        cluster = await self._stack.enter_async_context(self.cluster)
        self.daemon = await cluster.start_leader()
        async with Admin(cluster.config_of("operator")) as admin:
            for topic in (TOPIC, "other"):
                await admin.create_topic(topic, 1)
        self.producer = await self._stack.enter_async_context(Producer(cluster.config_of("shop"), PRODUCER))
        await self.producer.send_and_wait(TOPIC, b"key", b"first")
        self.consumer = await self._stack.enter_async_context(
            Consumer(
                cluster.config_of("billing"), topic=TOPIC, subscription=SUBSCRIPTION, name=CONSUMER, start="latest"
            )
        )
        self.device = await self._stack.enter_async_context(self.raw("gateway", "gateway-1"))
        await self.work()
        await wait_until(self._acknowledged, "the consumer has acknowledged")
        for entry in await self._entries(0):
            self._learn(entry)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def attacked(self, attack: Attack) -> None:
        """Carry out ``attack`` among honest work, and check its outcome, its evidence and its effects."""
        attacker = await self.attacker(attack.user)
        await self.work()
        await wait_until(self._connected, "the consumer is connected again after a pause of this process")
        before, seen_before = self._read_to, await self._seen(attack.seen, attacker)
        self._sent.clear()

        attempt = asyncio.ensure_future(attack.attempt(self, attack.user))
        while not attempt.done():
            await self.work()
        await self.work()

        assert attack.outcome == await attempt

        async def grew() -> bool:
            return await self._seen(attack.seen, attacker) > seen_before

        if not isinstance(attack.seen, Unseen):
            await wait_until(grew, f"the act is seen in {attack.seen}", 10)
        entries = await self._entries(before)
        unexpected = [each for each in entries if not (self._is_honest(each) or isinstance(each, attack.allowed))]
        assert not unexpected, f"effects in the ledger: {unexpected}"
        assert sorted(self._sent) == sorted(await self._stored(before)), "the ledger holds what honest users sent"

    async def next_round(self) -> None:
        """Wait until the honest users have done a whole round of work; for attempts, beside which they work."""
        last = self._rounds + 2
        await until(lambda: self._rounds >= last)

    async def attacker(self, user: str) -> RawClient:
        """Return the connection of a user who attacks."""
        if user not in self._attackers:
            client = await self._stack.enter_async_context(self.raw(user, f"{user}-1"))
            await client.subscribe(replies_topic(self.cluster.name, f"{user}/{user}-1"), self._on_reply)
            self._attackers[user] = client
        return self._attackers[user]

    def raw(self, user: str, client_id: str) -> RawClient:
        """Return a connection of ``user``, not yet open."""
        return RawClient.from_config(self.cluster.config_of(user), client_id)

    @property
    def producer_client_id(self) -> str:
        """The client id of the honest producer. It is random, so an attacker must learn it first."""
        return self.producer._client.client_id

    def context(self) -> ssl.SSLContext:
        """Return TLS that trusts the cluster's authority."""
        return client_context(ca_file=self.cluster.users.ca_file)

    def request(self, user: str, body: AnyRequestBody, *, named: str | None = None) -> tuple[int, bytes]:
        """Return the id and payload of a request of ``user``'s client; ``named``: the client that the payload names."""
        request_id = next(self._request_ids)
        client_id = named or f"{user}-1"
        request = Request(
            request_id=request_id,
            protocol=PROTOCOL_VERSION,
            client_id=client_id,
            leader_epoch=self.leader_epoch,
            ledger_id=self.producer._client.cluster_watch.ledger,
            body=body,
        )
        return request_id, codec.encode(request)

    def reply_to(self, request_id: int) -> asyncio.Future[AnyReplyBody]:
        """Return what the reply to a request that is sent next will set."""
        return self._replies.setdefault(request_id, asyncio.get_running_loop().create_future())

    async def ask(self, user: str, body: AnyRequestBody, *, named: str | None = None) -> str:
        """Send a request on the topic of ``user``; return the kind of the reply, or the verdict of its refusal."""
        request_id, payload = self.request(user, body, named=named)
        reply = self.reply_to(request_id)
        client = await self.attacker(user)
        await client.publish(requests_topic(self.cluster.name, 0, f"{user}/{user}-1"), payload)
        async with asyncio.timeout(REPLY_SECONDS):
            answer = await reply
        return answer.verdict if isinstance(answer, Rejected) else str(answer.__struct_config__.tag)

    async def describe(self, topic: str) -> TopicInfo:
        """Return the description of ``topic``, as the honest administrator sees it."""
        async with Admin(self.cluster.config_of("operator")) as admin:
            return await admin.describe_topic(topic)

    def _on_reply(self, _: str, payload: bytes) -> None:
        reply = codec.decode_reply(payload)
        if isinstance(reply, Reply) and reply.request_id in self._replies:
            self._replies.pop(reply.request_id).set_result(reply.body)

    async def work(self) -> None:
        """Let the honest users store and receive records.

        Everything that was sent to the leader before has been handled then.
        """
        values = [f"{next(self._numbers)}".encode() for _ in range(3)]
        self._sent += values
        deliveries = [await self.producer.send(TOPIC, b"key", value) for value in values[:2]]
        assert await self.device.publish(f"headgate/{self.cluster.name}/publish/{TOPIC}/key", values[2]) == "Success"
        for delivery in deliveries:
            await delivery
        received: list[bytes] = []
        async with asyncio.timeout(REPLY_SECONDS):
            for _ in values:
                record = await anext(self.consumer)
                received.append(record.value)
                await self.consumer.acknowledge(record)
        assert values[:2] == [value for value in received if value != values[2]], "each record once, and in order"
        assert sorted(values) == sorted(received)
        self._rounds += 1

    def _learn(self, entry: e.Entry) -> None:
        """Keep what an attacker may know or guess of the honest users."""
        match entry:
            case e.TermStarted():
                self.leader_epoch = entry.leader_epoch
            case e.TopicCreated(topic="orders"):
                self.topic_id = entry.topic_id
            case e.ProducerOpened(name="import-1"):
                self.producer_id, self.producer_token = entry.producer_id, entry.token
            case e.ConsumerRegistered():
                self.consumer_client_id, self.incarnation = entry.client_id.partition("/")[2], entry.incarnation
            case e.SegmentGranted():
                self.generation = entry.generation
            case _:
                pass

    def _is_honest(self, entry: e.Entry) -> bool:
        """Return whether the honest users wrote ``entry``. Their producer opens its identity again after a pause."""
        if isinstance(entry, e.ProducerOpened):
            return entry.user == HONEST_PRODUCER
        return isinstance(entry, e.RecordsStored | e.RecordsAcknowledged) and entry.topic_id == self.topic_id

    async def _connected(self) -> bool:
        """Return whether the newest chunk is read, and the ledger says that the consumer is connected."""
        first, self._read_to = self._read_to, await self.cluster.ledger(0).newest()
        for entry in await self._entries(first, self._read_to):
            if isinstance(entry, e.ConsumerDisconnected | e.ConsumerReconnected):
                self._is_connected = isinstance(entry, e.ConsumerReconnected)
        return self._is_connected

    async def _acknowledged(self) -> bool:
        return any(isinstance(entry, e.RecordsAcknowledged) for entry in await self._entries(0))

    async def _entries(self, after: int, last: int | None = None) -> list[e.Entry]:
        ledger = self.cluster.ledger(0)
        last = await ledger.newest() if last is None else last
        return [entry for number in range(after + 1, last + 1) for entry in (await ledger.read(number)).entries]

    async def _stored(self, after: int) -> list[bytes]:
        ledger = self.cluster.ledger(0)
        numbers = range(after + 1, await ledger.newest() + 1)
        rows = [row for number in numbers for row in record_rows((await ledger.read_records(number))[1])]
        return [row["value"] for row in rows if row["topic_id"] == self.topic_id]

    async def _seen(self, evidence: Evidence, attacker: RawClient) -> float:
        if isinstance(evidence, Metric):
            # The server reuses a rendering for a second, unless another format is asked for.
            return await metric(
                self.daemon.http_address, evidence.name, accept=next(self._metric_formats), **evidence.labels
            )
        if isinstance(evidence, Unseen):
            return 0
        pattern = evidence.pattern.replace("{id}", re.escape(attacker.client_id))
        return len(re.findall(pattern, self.cluster.broker.log_path.read_text()))
