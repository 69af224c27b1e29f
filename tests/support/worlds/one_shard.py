"""A shard with its leader and a bare client, on fake servers, for tests of the leader."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any

from prometheus_client import CollectorRegistry

from controller.access.control import AccessControl
from controller.chunk_writer.group_commit import TermEndedError
from controller.cluster.own_status import summaries
from controller.context.leader_context import LeaderContext, OpenSession, TraceCommits
from controller.leader.leader import ShardLeader
from controller.leader.term import begin_term
from controller.leadership.policy.instance_record import MaintenanceRecord
from controller.settings.sections import IngestSettings, RetentionSettings, ScalingSettings
from drain.protocol import DrainedResponse, DrainQuery
from headgate.ledger.compacted import delete_compacted_segments
from headgate.ledger.ledger import Ledger, if_exists
from headgate.model.layout import ShardMap
from headgate.protocol import codec
from headgate.protocol.codec import client_address, leader_topic, replies_topic, requests_topic
from headgate.protocol.replies import Push, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION, RequestBody
from headgate.protocol.requests import Request
from metrics.events import Event
from metrics.instruments import Instruments
from shard.access.rules import OPEN
from shard.state.shard_state import TERM_BITS, ShardState
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.status_documents import part, shard_document
from tests.support.worlds.subscription_environment import SETTINGS
from web.api.overview import Overview, merged

CLUSTER = "test"
BEGAN_MS = 1_767_225_600_000
TERM_IDS = itertools.count(1 << TERM_BITS, 1 << TERM_BITS)
"""No world draws one of another, even if it continues a copy of its ledger. Ids in a world are 1, 2, ..."""


def now_ms() -> int:
    """The loop's time as a wall clock, which began in 2026."""
    return BEGAN_MS + int(asyncio.get_running_loop().time() * 1000)


class BareClient:
    """Sends requests and collects replies and pushes."""

    def __init__(self, broker: FakeBroker, client_id: str = "client", user: str | None = None) -> None:
        self.client_id = client_id
        self.address = client_address(user, client_id)
        self.replies: dict[int, list[Reply]] = {}
        self.pushes: list[Push] = []
        self.transport = broker.transport(client_id)
        self._next = 0
        self._arrived = asyncio.Event()

    async def open(self) -> None:
        """Connect and subscribe."""
        await self.transport.__aenter__()
        connected = asyncio.Event()
        self.transport.on_connection(lambda up: connected.set() if up else None)
        await self.transport.subscribe(replies_topic(CLUSTER, self.address), self._on_reply)
        if not self.transport.connected:
            await connected.wait()

    def send(self, kind: type[RequestBody], *, shard: int = 0, **fields: Any) -> int:
        """Send one request and return its id."""
        self._next += 1
        request = Request(
            request_id=self._next,
            protocol=PROTOCOL_VERSION,
            client_id=self.client_id,
            leader_epoch=fields.pop("leader_epoch", 1),
            max_term_age_ms=fields.pop("max_term_age_ms", None),
            body=kind(**fields),
        )
        self.send_raw(codec.encode(request), shard=shard)
        return self._next

    def send_raw(self, payload: bytes, *, shard: int = 0) -> None:
        """Send any payload."""
        assert self.transport.publish(requests_topic(CLUSTER, shard, self.address), payload)

    async def reply(self, request_id: int) -> Any:
        async with asyncio.timeout(30):
            while not self.replies.get(request_id):
                self._arrived.clear()
                await self._arrived.wait()
        return self.replies[request_id][0].body

    async def call(self, kind: type[RequestBody], **fields: Any) -> Any:
        """Send one request and return the body of its reply."""
        return await self.reply(self.send(kind, **fields))

    def _on_reply(self, _: str, payload: bytes) -> None:
        message = codec.decode_reply(payload)
        if isinstance(message, Push):
            self.pushes.append(message)
        else:
            self.replies.setdefault(message.request_id, []).append(message)
        self._arrived.set()


class MetricsOnDemand:
    """Makes the metrics of all events once a test asks for them: they take longer than the rest of a small world."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.observe = self._events.append

    @cached_property
    def registry(self) -> CollectorRegistry:
        instruments = Instruments(CollectorRegistry())
        for event in self._events:
            instruments.observe(event)
        self.observe = instruments.observe
        return instruments.registry


class NoOtherDaemons:
    """A daemon without others: it keeps its shards."""

    def __init__(self, world: OneShard, instance: str) -> None:
        self._world = world
        self._instance = instance

    async def transfer(self, shard: int, daemon: str, token: str) -> str | None:
        self._world.transfers.append(daemon)
        return None if daemon == self._instance else f"no daemon {daemon!r} is live, to lead shard {shard}"

    async def raise_level(self, level: int) -> str | None:
        self._world.level = max(level, self._world.level)
        return None

    async def set_shards(self, shards: int, before: int) -> str | None:
        self._world.shards = (
            self._world.shards.grown(shards) if before == self._world.shards.shards else self._world.shards
        )
        return None

    async def set_maintenance(self, daemon: str, *, on: bool, token: str) -> str | None:
        self._world.maintenance = self._world.maintenance.after(token, on=on) or self._world.maintenance
        return None


class OneShard:
    """A broker, a store, and one term at a time."""

    def __init__(
        self,
        *,
        ingest: IngestSettings | None = None,
        scaling: ScalingSettings | None = None,
        retention: RetentionSettings | None = None,
    ) -> None:
        self.broker = FakeBroker()
        self.store = FakeStore(latency_seconds=(0.001, 0.002))
        self.ledger = Ledger(self.store, 0)
        self.ledger_id = b""
        self.observer = MetricsOnDemand()
        self.producer_ids = itertools.count(1000)
        self.access = AccessControl(OPEN, self.observer)
        self.ingest = ingest or IngestSettings()
        self.scaling = scaling or ScalingSettings()
        self.retention = retention or RetentionSettings()
        self.trace_commits: TraceCommits | None = None
        self.drain_problem: str | None = None
        """Why drain checks are not answered, as the daemon says it."""
        self.maintenance = MaintenanceRecord()
        """Of any daemon, as ZooKeeper has it."""
        self.level = 1
        self.shards = ShardMap((1,))
        """As ZooKeeper has them."""
        self.transfers: list[str] = []
        """Daemons to which the shard was to be transferred."""
        self.yields_to_contender = False
        self.trim_delay_seconds: float | None = None
        self.clock_ahead_ms = 0
        """How far the leader's wall clock is ahead."""
        self.drained_segments: dict[int, int] = {}
        """Segment → its end, of those that the Spark process would report."""
        self.open_session: OpenSession | None = None
        """Opens the session of MQTT devices; None: the leader stores no device messages."""

    @property
    def registry(self) -> CollectorRegistry:
        return self.observer.registry

    def now_ms(self) -> int:
        return now_ms() + self.clock_ahead_ms

    async def drained(self, query: DrainQuery) -> DrainedResponse:
        """Report `drained_segments`, in place of the Spark process."""
        drained = {segment: end for segment, end in self.drained_segments.items() if segment in query.segments}
        return DrainedResponse(id=0, drained=drained, watermark=query.at_least_chunk)

    async def begin(self, instance: str = "a", transport: Any = None) -> ShardLeader:
        """Read the ledger, write the next term chunk, and return its leader."""
        state = ShardState(0)
        while (found := await if_exists(self.ledger.read, state.chunk + 1)) is not None:
            state.apply_all(found.entries, chunk=found.header.number, at_ms=found.header.at_ms)
        assert await begin_term(self.ledger, state, instance, self.now_ms(), next(TERM_IDS))
        context = LeaderContext(
            cluster=CLUSTER,
            instance=instance,
            ledger=self.ledger,
            ledger_id=self.ledger_id,
            transport=transport or self.broker.transport(f"daemon-{instance}"),
            access=self.access,
            ingest=self.ingest,
            subscriptions=SETTINGS,
            scaling=self.scaling,
            retention=self.retention,
            delete_data=partial(delete_compacted_segments, self.store),
            observer=self.observer,
            drained_source=self.drained,
            drain_problem=lambda: self.drain_problem,
            feature_level=lambda: self.level,
            now_ms=self.now_ms,
            rng=random.Random(1),
            new_producer_id=partial(next, self.producer_ids),
            open_session=self.open_session,
            trim_delay_seconds=self.trim_delay_seconds,
            overview=lambda: self.overview(instance, leader),
            shards=lambda: self.shards,
            operations=NoOtherDaemons(self, instance),
            trace_commits=self.trace_commits,
        )
        leader = ShardLeader(state, context, lambda: self.yields_to_contender)
        return leader

    async def overview(self, instance: str, leader: ShardLeader) -> Overview:
        """Return what a daemon without others knows of the cluster."""
        shard = shard_document(leader_epoch=leader.leader_epoch)
        own = part(instance, *await summaries([leader]), as_of_ms=self.now_ms(), shards=(shard,))
        return merged(CLUSTER, instance, self.now_ms(), 1, [own])

    @asynccontextmanager
    async def leader(self, instance: str = "a") -> AsyncIterator[ShardLeader]:
        """Lead until the block ends."""
        transport = self.broker.transport(f"daemon-{instance}")
        async with transport:
            leader = await self.begin(instance, transport)
            transport.on_connection(leader.connection_changed)
            task = asyncio.create_task(leader.serve())
            announced = asyncio.Event()
            self.broker.spies.append(
                lambda message: announced.set() if message.topic == leader_topic(CLUSTER, 0) else None
            )
            await announced.wait()
            try:
                yield leader
            finally:
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(outcome, Exception) and not isinstance(outcome, TermEndedError):
                raise outcome

    @asynccontextmanager
    async def led(self) -> AsyncIterator[tuple[ShardLeader, BareClient]]:
        """Lead, with one client, until the block ends."""
        async with self.leader() as leader, self.client() as client:
            yield leader, client

    @asynccontextmanager
    async def client(self, client_id: str = "client", user: str | None = None) -> AsyncIterator[BareClient]:
        """A connected bare client."""
        client = BareClient(self.broker, client_id, user)
        await client.open()
        try:
            yield client
        finally:
            await client.transport.__aexit__(None, None, None)
