"""A client for tests of the command line: the real Admin, whose requests are answered from plain lists, and fakes of
Producer and Consumer on these.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

from msgspec.structs import replace

from controller.cli.context import DaemonContext
from controller.settings.sections import LogSettings
from headgate import (
    ClusterInfo,
    ConsumerInfo,
    ConsumerSegmentCount,
    ParkedKeyInfo,
    Plan,
    ProducerInfo,
    ProposedMove,
    ProposedSegment,
    PruneResult,
    SeekResult,
    SegmentAssignment,
    SegmentInfo,
    SegmentSeek,
    SubscriptionInfo,
    SubscriptionType,
    TopicInfo,
    UnprunedSegment,
)
from headgate.client.admin import Admin
from headgate.client.cluster_query import unknown_topic
from headgate.client.topic_source import TopicSource
from headgate.errors import HeadgateError, NoLeaderError, RequestRejectedError
from headgate.model.entries import DeliveryPolicy
from headgate.model.headers import Headers
from headgate.protocol import replies, requests
from headgate.protocol.request_fields import require_fields
from headgate.storage.object_store import Store
from shard.requests.topic_import import import_topic
from shard.state.shard_state import ShardState
from shard.steps import complete
from shard.subscriptions.refusal import Refusal
from tests.support.fakes.object_store import FakeStore
from tests.support.worlds.command_shard import decided

SHARD = 2
"""Of each topic."""
MOVES = [
    SegmentSeek(segment=0, from_offset=5, to_offset=2, end_offset=12),
    SegmentSeek(segment=1, from_offset=0, to_offset=4, end_offset=4),
    SegmentSeek(segment=2, from_offset=3, to_offset=3, end_offset=9),
]


def plan(topic_name: str, name: str) -> Plan:
    return Plan(
        topic=topic_name,
        subscription=name,
        created=[ProposedSegment(segment=8, first_hash=0, last_hash=0x3FFF, parents=[0], blocked_by=[0])],
        after_rebalance=[],
        after_drain=[ProposedMove(segment=8, before=None, after="c9")],
        consumers=[ConsumerSegmentCount(consumer="c9", before=None, after_rebalance=0, after_drain=1)],
    )


def segment(number: int, first: int, last: int, state: str = "active", **fields: Any) -> SegmentInfo:
    given = {"parents": (), "children": (), "next_offset": 0, "size_bytes": 0, "created_at_ms": 0}
    given |= {"sealed_at_ms": None, "label": None} | fields
    return SegmentInfo(segment=number, first_hash=first, last_hash=last, state=state, **given)


def topic(name: str, *segments: SegmentInfo, subscriptions: tuple[str, ...] = ()) -> TopicInfo:
    """Return a topic on shard 2 at layout epoch 7."""
    return TopicInfo(
        topic=name, topic_id=1, shard=SHARD, layout_epoch=7, segments=list(segments), subscriptions=list(subscriptions)
    )


def subscription(topic_name: str, name: str) -> SubscriptionInfo:
    """Return a STREAM subscription: one segment is granted, and one is blocked by it."""
    return SubscriptionInfo(
        topic=topic_name,
        subscription=name,
        subscription_id=5,
        type=SubscriptionType.STREAM,
        order="strict",
        seek_generation=0,
        point=(9, 77),
        consumers=[ConsumerInfo(consumer="reader-1", incarnation=1, connected=True, segments=[0])],
        segments=[
            SegmentAssignment(
                segment=0,
                status="granted",
                acknowledged_offset=5,
                next_offset=12,
                unacknowledged=7,
                consumer="reader-1",
                generation=3,
            ),
            SegmentAssignment(
                segment=1, status="blocked", acknowledged_offset=0, next_offset=4, unacknowledged=4, blocked_by=[0]
            ),
        ],
    )


@dataclass
class Record:
    """Replaces headgate.ConsumedRecord."""

    key: bytes
    value: bytes
    segment: int = 0
    offset: int = 0
    timestamp_ms: int = 1_700_000_000_000
    topic: str = "orders"
    generation: int = 1
    headers: Headers = ()
    parked_number: int = 0


@dataclass
class FakeCluster:
    """The state that the fakes of one test share."""

    topics: dict[str, TopicInfo] = field(default_factory=dict)
    pruned_ends: dict[int, int] = field(default_factory=dict)
    producers: list[ProducerInfo] = field(default_factory=list)
    subscriptions: list[SubscriptionInfo] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    sent: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    positions: list[bytes | None] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    """Of the sent records."""
    failures: dict[bytes, Exception] = field(default_factory=dict)
    """Value of a record → what its delivery raises."""
    source_position: bytes | None = None
    names: list[str | None] = field(default_factory=list)
    """Names of the producers that were opened."""
    flushes: int = 0
    records: list[Record] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    opened: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    parked: list[ParkedKeyInfo] = field(default_factory=list)
    moves: list[SegmentSeek] = field(default_factory=lambda: MOVES)
    overview: ClusterInfo | None = None
    """What daemons know of each other; None: no shard has a leader."""
    source: TopicSource | None = None
    """What `headgate read` reads, whatever the name of the topic."""
    imports: ShardState = field(default_factory=lambda: ShardState(SHARD))
    """State of the imported topics; a leader's decisions apply to it."""


class OfflineAdmin(Admin):
    """The real Admin without a connection; who extends it answers its requests."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def _all_shards(self) -> int:
        return SHARD + 2

    async def _at(self, topic: str, ask: Callable[[int], Awaitable[Any]]) -> Any:
        return await ask(SHARD)

    async def _create(self, request: requests.CreateTopic | requests.ImportTopic, kind: Any) -> Any:
        return await self._request(SHARD, request, kind)

    def _token(self) -> str:
        return "token"


class FakeAdmin(OfflineAdmin):
    """A `FakeCluster` answers its requests, and remembers what asks for a change, without the token."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    async def describe_cluster(self, *, blocked: bool = False) -> ClusterInfo:
        found = self.cluster.overview
        if found is None:
            raise NoLeaderError("no leader describes cluster 'local'")
        rows = tuple(row for row in found.subscriptions if row.blocked_segments or not blocked)
        return replace(found, subscriptions=rows)

    async def _positions_at(self, topic: str, timestamp_ms: int, method: str) -> tuple[int, dict[int, int]]:
        """Return the id of the topic, and the time as the offset of segment 0."""
        return 1, {0: timestamp_ms}

    async def _request(self, shard: int, request: Any, kind: Any) -> Any:
        require_fields(request)
        answer = self._answer(shard, request)
        if requests.is_command(request):
            self.cluster.calls.append(replace(request, token=""))
        elif isinstance(request, requests.PlanChanges):
            self.cluster.calls.append(request)
        return answer

    def _answer(self, shard: int, request: Any) -> replies.ReplyBody:
        cluster = self.cluster
        match request:
            case requests.ListTopics():
                return replies.TopicList(topics=[*cluster.topics.values()] if shard == SHARD else [], next=None)
            case requests.ListProducers():
                return replies.ProducerList(
                    producers=[each for each in cluster.producers if each.shard == shard], next=None
                )
            case requests.DescribeProducer() | requests.DeleteProducer():
                known = [each for each in cluster.producers if (each.producer, each.shard) == (request.producer, shard)]
                if not known:
                    raise RequestRejectedError("invalid", "unknown")
                return (
                    replies.ProducerReply(known[0])
                    if isinstance(request, requests.DescribeProducer)
                    else replies.Done()
                )
            case requests.ListSubscriptions():
                found = [each for each in cluster.subscriptions if request.topic in (None, each.topic)]
                return replies.SubscriptionList(subscriptions=found if shard == SHARD else [], next=None)
            case requests.ListParkedKeys():
                keys = [each for each in cluster.parked if request.key in (None, each.key)]
                return replies.ParkedKeyList(keys=keys, next=None)
            case requests.CreateTopic():
                cluster.topics[request.topic] = topic(request.topic, segment(0, 0, 65_535))
            case requests.ImportTopic():
                return self._import(request)
            case requests.RaiseLevel() | requests.SetMaintenance():
                return replies.Done()
        if "subscription" in request.__struct_fields__:
            return self._answer_of_subscription(request)
        if request.topic not in cluster.topics:
            raise RequestRejectedError("invalid", unknown_topic(request.topic, cluster.topics))
        match request:
            case requests.DeleteTopic():
                return replies.Done()
            case requests.PruneTopic():
                kept = [UnprunedSegment(segment=2, reason="subscription 'billing' has acknowledged 5 of 12 records")]
                return replies.PruneReply(PruneResult(segments=[0, 1], retained=kept, abandoned=["audit"]))
        ends = [
            (each, cluster.pruned_ends[each]) for each in getattr(request, "pruned", ()) if each in cluster.pruned_ends
        ]
        return replies.TopicReply(cluster.topics[request.topic], pruned_ends=ends)

    def _import(self, request: requests.ImportTopic) -> replies.TopicImportReply:
        state = self.cluster.imports
        outcome = decided(import_topic(replace(request, token=f"t{len(self.cluster.calls)}"), state, "alice"))
        if isinstance(outcome, Refusal):
            raise RequestRejectedError(outcome.verdict, outcome.reason)
        if outcome.entries:
            state.apply_all(outcome.entries, chunk=state.chunk + 1, at_ms=0)
        answer: replies.TopicImportReply = complete(outcome.answer(state).steps)
        if not request.dry_run:
            self.cluster.topics[request.topic] = answer.result.topic
        return answer

    def _answer_of_subscription(self, request: Any) -> replies.ReplyBody:
        cluster, of = self.cluster, (request.topic, request.subscription)
        described = subscription(*of)
        match request:
            case requests.DescribeSubscription():
                described = next(each for each in cluster.subscriptions if each.subscription == request.subscription)
            case requests.CreateSubscription():
                known = [each for each in cluster.subscriptions if (each.topic, each.subscription) == of]
                described = replace(described, type=request.subscription_type, consumers=[])
                cluster.subscriptions += [] if known else [described]
                described = known[0] if known else described
            case requests.SeekSubscription():
                return replies.SeekReply(SeekResult(seek_generation=7, moves=cluster.moves))
            case requests.SetDeliveryPolicy():
                policy = DeliveryPolicy(
                    max_deliveries=request.max_deliveries or 0, dead_letter_topic=request.dead_letter_topic or ""
                )
                described = replace(described, policy=policy, type=SubscriptionType.QUEUE)
            case requests.PlanChanges():
                return replies.PlanReply(plan(*of))
            case requests.DeleteSubscription() | requests.EvictConsumer() | requests.ResumeKey():
                return replies.Done()
        return replies.SubscriptionReply(described)


class FakeProducer:
    """Replaces Producer; every outcome is known at once."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.source_position: bytes | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cluster.closed += 1

    async def open(self, _: str) -> None:
        self.source_position = self.cluster.source_position

    async def send(
        self,
        name: str,
        key: bytes,
        value: bytes,
        *,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        source_position: bytes | None = None,
    ) -> asyncio.Future[None]:
        self.cluster.headers.append(headers)
        self.cluster.timestamps.append(timestamp_ms)
        self.cluster.sent.append((name, key, value))
        self.cluster.positions.append(source_position)
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if value in self.cluster.failures:
            outcome.set_exception(self.cluster.failures[value])
        else:
            outcome.set_result(None)
        return outcome

    async def flush(self) -> None:
        self.cluster.flushes += 1

    async def close(self, _: float) -> None:
        await self.flush()


class FakeConsumer:
    """Replaces Consumer; yields the cluster's records, then waits."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._waiting = deque(cluster.records)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cluster.closed += 1

    async def __aiter__(self) -> AsyncIterator[Record]:
        while self._waiting:
            yield self._waiting.popleft()
        await asyncio.Event().wait()

    async def get_many(self, max_records: int) -> list[Record]:
        assert max_records > 0
        return [self._waiting.popleft() for _ in range(min(max_records, len(self._waiting)))]

    async def acknowledge(self, record: Record) -> None:
        self.cluster.acknowledged.append((record.segment, record.offset))

    async def until_caught_up(self) -> AsyncIterator[Record]:
        while self._waiting:
            yield self._waiting.popleft()


class FakeContext(DaemonContext):
    """Commands get their clients from one FakeCluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.others: dict[Path, FakeCluster] = {}
        """Other clusters, by the file of their configuration."""

    def of_cluster(self, config: Path) -> Self:
        other = super().of_cluster(config)
        other.cluster = self.others.get(config, self.cluster)
        return other

    def open_admin(self) -> Any:
        return FakeAdmin(self.cluster)

    @asynccontextmanager
    async def open_topic(self, topic: str) -> AsyncIterator[TopicSource]:
        if self.cluster.source is None:
            raise HeadgateError(f"topic {topic!r} does not exist; these do: headgate topic list")
        yield self.cluster.source

    async def open_store(self) -> Store:
        return FakeStore() if self.cluster.source is None else self.cluster.source.ledger.store

    def open_producer(self, *, name: str | None, copies: bool = False) -> Any:
        self.cluster.names.append(name)
        return FakeProducer(self.cluster)

    def open_consumer(self, **options: Any) -> Any:
        self.cluster.opened.append(options)
        return FakeConsumer(self.cluster)


class InProcessContext(FakeContext):
    """For commands inside the test process, whose standard streams have no file descriptors."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.is_terminal = False
        """Whether commands may ask; the answer is on standard input."""
        self.input_file = -1
        """Descriptor that commands read as standard input."""
        self.write_error: OSError | None = None
        """Raised by every write to standard output."""

    def start_logs(self) -> None:
        pass

    def start_daemon_logs(self, settings: LogSettings, stream: TextIO, instance: str) -> None:
        pass

    def can_ask(self) -> bool:
        return self.is_terminal

    def standard_input(self) -> int:
        return self.input_file

    async def write_output(self, data: bytes) -> None:
        if self.write_error is not None:
            raise self.write_error
        sys.stdout.buffer.write(data)

    def run_while_read(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self.run(main)
