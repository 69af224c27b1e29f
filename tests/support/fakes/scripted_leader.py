"""A scripted leader: it accepts batches in sequence, unless its script contains something else.

``script`` lists what to do with the next batches, one word each:

``accept``      follow the verdict table
``drop``        ignore the batch, as if the request were lost
``silent``      store the batch without a reply
``double``      store the batch and reply twice
``delay``       store the batch and reply `DELAY_SECONDS` later
a verdict       reject the batch with it
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from contextlib import asynccontextmanager
from typing import TypeVar, get_args

import pytest

from clients.conformance.scripted_ledger import ScriptedLedger, ScriptedProducers
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.protocol import codec, replies, requests
from headgate.protocol.codec import ClusterDescription, HeadAnnouncement, LeaderAnnouncement
from headgate.protocol.request_fields import PROTOCOL_VERSION, RequestBody
from headgate.protocol.requests import Record, RegisterConsumer
from headgate.settings.config import ClientConfig
from headgate.views.topics import TopicInfo
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore
from tests.support.waiting import until

CLUSTER = "test"
TOPIC_ID = 1
DELAY_SECONDS = 1.0

BodyT = TypeVar("BodyT", bound=RequestBody)


def now_ms() -> int:
    """Return the loop's time as a wall clock."""
    return int(asyncio.get_running_loop().time() * 1000) + 1_700_000_000_000


class ScriptedLeader:
    """One term of one shard. Create another one on the same `ScriptedCluster` for the next term."""

    def __init__(
        self,
        cluster: ScriptedCluster,
        shard: int,
        epoch: int,
        *,
        window: int = 64,
        grants: Iterable[replies.Grant] = (),
    ) -> None:
        self.cluster = cluster
        self.shard = shard
        self.epoch = epoch
        self.window = window
        self.script: deque[str] = deque()
        self.requests: list[requests.Request] = []
        self.transport = cluster.broker.transport(f"leader-{shard}-{epoch}")
        self.grants = list(grants)
        self.blocked, self.stable = 0, True
        self.heartbeat_seconds = 5.0
        self.revoke_timeout_seconds = self.lease_seconds = 30.0
        self.answers = True
        """Whether it replies at all."""
        self.refused: dict[str, replies.Verdict] = {}
        """Type of a request → the verdict with which it refuses it."""
        self.mute = False
        """Whether it executes commands without replying."""
        self.began_at = 0.0

    async def start(self) -> None:
        self.began_at = asyncio.get_running_loop().time()
        self.cluster.newest_epoch = max(self.cluster.newest_epoch, self.epoch)
        await self.transport.__aenter__()
        await self.transport.subscribe(codec.requests_filter(CLUSTER, self.shard), self._on_request)
        await until(lambda: self.transport.connected)
        self.announce()

    def announce(self) -> None:
        message = LeaderAnnouncement(
            shard=self.shard, leader_epoch=self.epoch, instance=f"node-{self.epoch}", window=self.window
        )
        self._retain(codec.leader_topic(CLUSTER, self.shard), message)
        description = ClusterDescription(protocol=PROTOCOL_VERSION, shards=self.cluster.shards, ledger_url="file:///x")
        self._retain(codec.cluster_topic(CLUSTER), description)

    def announce_head(self) -> None:
        message = HeadAnnouncement(shard=0, leader_epoch=self.epoch, head=self.cluster.ledger.head)
        self.transport.publish(codec.head_topic(CLUSTER, 0), codec.encode(message))

    @property
    def term_age_ms(self) -> int:
        return int((asyncio.get_running_loop().time() - self.began_at) * 1000)

    def seen(self, kind: type[BodyT]) -> list[BodyT]:
        return [request.body for request in self.requests if isinstance(request.body, kind)]

    def push(self, request: requests.RegisterConsumer, *, granted=(), revoked=()) -> None:
        self._push(request, replies.AssignmentChanged, granted=list(granted), revoked=list(revoked))

    def push_fenced(self, request: requests.RegisterConsumer, reason: str) -> None:
        self._push(request, replies.ConsumerFenced, reason=reason)

    def _push(self, request: requests.RegisterConsumer, kind: type[replies.Push], **fields) -> None:
        message = kind(
            topic=request.topic,
            subscription=request.subscription,
            consumer=request.consumer,
            incarnation=request.incarnation,
            leader_epoch=self.epoch,
            **fields,
        )
        client_id = next(each.client_id for each in self.requests if each.body is request)
        self.transport.publish(
            codec.replies_topic(CLUSTER, codec.client_address(None, client_id)), codec.encode(message)
        )

    def _retain(self, topic: str, message) -> None:
        self.transport.publish(topic, codec.encode(message), retain=True)

    def _on_request(self, _: str, payload: bytes) -> None:
        request = codec.decode_request(payload)
        if isinstance(request.body, requests.DescribeLeader):
            self._describe(request, request.body)
            return
        self.requests.append(request)
        if not self.answers:
            return
        body = request.body
        if request.leader_epoch not in (None, self.epoch):
            self.refuse(request, "not_leader")
        elif request.max_term_age_ms is not None and request.max_term_age_ms <= self.term_age_ms:
            expired = replies.Rejected(verdict="expired", reason="scripted expired", term_age_ms=self.term_age_ms)
            self.reply(request, expired)
        elif (verdict := self.refused.get(type(body).__name__)) is not None:
            self.refuse(request, verdict)
        elif isinstance(body, requests.ProduceBatch | requests.AcknowledgeBatch):
            self._batch(request, body)
        else:
            answer = self._command(body)
            if not self.mute:
                self.reply(request, answer)

    def _describe(self, request: requests.Request, body: requests.DescribeLeader) -> None:
        deposed = self.epoch < self.cluster.newest_epoch
        if self.answers and not (deposed and self.epoch < body.heard_epoch):
            self.reply(request, replies.LeaderReply(instance=f"node-{self.epoch}", window=self.window))

    def reply(self, request: requests.Request, body: replies.AnyReplyBody, *, epoch: int | None = None) -> None:
        reply = replies.Reply(
            request_id=request.request_id, leader_epoch=self.epoch if epoch is None else epoch, body=body
        )
        self.transport.publish(
            codec.replies_topic(CLUSTER, codec.client_address(None, request.client_id)), codec.encode(reply)
        )

    def refuse(self, request: requests.Request, verdict: replies.Verdict, *, epoch: int | None = None) -> None:
        self.reply(request, replies.Rejected(verdict=verdict, reason=f"scripted {verdict}"), epoch=epoch)

    def _batch(self, request: requests.Request, batch: requests.ProduceBatch | requests.AcknowledgeBatch) -> None:
        action = self.script.popleft() if self.script else "accept"
        if action == "drop":
            return
        if action in get_args(replies.Verdict):
            self.refuse(request, action)
            return
        if isinstance(batch, requests.AcknowledgeBatch):
            self.cluster.acknowledged += batch.acknowledgements
            reply: replies.AnyReplyBody = replies.Acknowledged()
        else:
            reply = self.cluster.producers.produce(batch)
            self.announce_head()
        if action == "delay":
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self.reply, request, reply)
        elif action != "silent":
            self.reply(request, reply)
            if action == "double":
                self.reply(request, reply)

    def _command(self, body: requests.AnyRequestBody) -> replies.AnyReplyBody:
        match body:
            case requests.OpenProducer():
                return self.cluster.producers.open(body)
            case requests.DescribePosition():
                return replies.SourcePosition(topic_id=TOPIC_ID, position=self.cluster.last_position)
            case requests.RegisterConsumer():
                return replies.Registered(
                    topic_id=TOPIC_ID,
                    subscription_id=2,
                    grants=self.grants,
                    head=self.cluster.ledger.head,
                    blocked=self.blocked,
                    heartbeat_interval_seconds=self.heartbeat_seconds,
                    revoke_timeout_seconds=self.revoke_timeout_seconds,
                    lease_seconds=self.lease_seconds,
                )
            case requests.Heartbeat():
                return replies.HeartbeatReply(head=self.cluster.ledger.head, blocked=self.blocked, stable=self.stable)
            case (
                requests.ConfirmRevoked()
                | requests.LeaveConsumer()
                | requests.DeleteTopic()
                | requests.DeleteSubscription()
            ):
                return replies.Done()
            case requests.ListTopics():
                return replies.TopicList(topics=[])
            case requests.CreateTopic() | requests.SplitSegment() | requests.DescribeTopic() | requests.MergeSegments():
                self.cluster.commands.setdefault(getattr(body, "token", ""), type(body).__name__)
                return replies.TopicReply(
                    topic=TopicInfo(
                        topic=body.topic, topic_id=1, shard=0, layout_epoch=1, segments=[], subscriptions=[]
                    )
                )
        raise AssertionError(f"no answer to {type(body).__name__}")


class ScriptedCluster:
    """A broker, a store, and the state that survives a leader."""

    def __init__(self, *, segments: int = 1, shards: int = 1) -> None:
        """``shards``: `leader` leads shard 0; the others have no leader."""
        self.broker = FakeBroker(random.Random(1))
        self.store = FakeStore()
        self.segments, self.shards = segments, shards
        self.ledger = ScriptedLedger(TOPIC_ID, self.store.objects.__setitem__)
        self.stored = self.ledger.stored
        self.producers = ScriptedProducers(self.store_batch)
        self.newest_epoch = 0
        """Of the newest term in the ledger."""
        self.acknowledged: list[requests.Acknowledgement] = []
        self.positions: list[bytes | None] = []
        self.commands: dict[str, str] = {}
        self.last_position: bytes | None = None

    def client(self, client_id: str = "client", *, broker_timeout_seconds: float | None = None) -> Client:
        transport = self.broker.transport(client_id, will=Client.will(CLUSTER, client_id))
        config = None
        if broker_timeout_seconds is not None:
            config = ClientConfig(CLUSTER, "mq", 1883, "file:///x", broker_timeout_seconds=broker_timeout_seconds)
        who = {"cluster": CLUSTER, "client_id": client_id, "config": config}
        return Client(transport=transport, store=self.store, **who, now_ms=now_ms, rng=random.Random(2))

    @asynccontextmanager
    async def leader(self, epoch: int = 1, **settings):
        leader = ScriptedLeader(self, 0, epoch, **settings)
        await leader.start()
        try:
            yield leader
        finally:
            await leader.transport.__aexit__(None, None, None)

    def store_batch(self, batch: requests.ProduceBatch) -> replies.Committed:
        self.positions.append(batch.source_position)
        placements = self.ledger.write(batch.records, batch.headers_by_record, segments=range(self.segments))
        return replies.Committed(placements=placements, topic_id=TOPIC_ID)

    def store_records(self, records: list[requests.Record], leader: ScriptedLeader | None = None) -> None:
        """Write a chunk, which ``leader`` announces."""
        self.ledger.write(records, {}, segments=range(self.segments))
        if leader is not None:
            leader.announce_head()


def grant(segment: int = 0, generation: int = 1, start_offset: int = 0, **more) -> replies.Grant:
    """Return a grant that reads from the first chunk."""
    return replies.Grant(
        segment=segment,
        generation=generation,
        first_hash=0,
        last_hash=0xFFFF,
        start_offset=start_offset,
        start_chunk=1,
        **more,
    )


async def send_all(producer: Producer, count: int) -> list:
    return [await producer.send("orders", b"key", str(n).encode()) for n in range(count)]


def consumer(cluster: ScriptedCluster, client_id: str = "client", **more) -> Consumer:
    return Consumer(cluster.client(client_id), **{"topic": "orders", "subscription": "billing", "name": "c", **more})


def records(*values: str, key: bytes = b"key") -> list[Record]:
    return [Record(key, value.encode(), 1) for value in values]


async def take(reader: Consumer, count: int, *, acknowledge: bool = False) -> list[str]:
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            record = await anext(reader)
            found.append(record.value.decode())
            if acknowledge:
                await reader.acknowledge(record)
    return found


async def nothing_more(reader: Consumer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await anext(reader)


def acknowledged(cluster: ScriptedCluster) -> list[tuple[int, int, int]]:
    return [(a.segment, a.generation, a.end_offset) for a in cluster.acknowledged]


def registration(leader) -> RegisterConsumer:
    return leader.seen(RegisterConsumer)[-1]
