"""A client for tests of the command line: Admin, Producer and Consumer on topics and records in plain lists."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Self, TextIO

from msgspec.structs import replace

from controller.cli.context import DaemonContext
from controller.settings.sections import LogSettings
from headgate import (
    ClusterInfo,
    ConsumerInfo,
    ConsumerReasons,
    ConsumerSegmentCount,
    Explanation,
    ExternalLayout,
    ParkedKeyInfo,
    Plan,
    ProducerInfo,
    ProposedMove,
    ProposedSegment,
    PruneResult,
    SeekResult,
    SegmentAssignment,
    SegmentInfo,
    SegmentReasons,
    SegmentSeek,
    SubscriptionInfo,
    SubscriptionType,
    TopicImportResult,
    TopicInfo,
    UnprunedSegment,
)
from headgate.client.admin import TopicSetting
from headgate.client.topic_source import TopicSource
from headgate.client.unknown_names import unknown_topic
from headgate.errors import HeadgateError, NoLeaderError, RequestRejectedError
from headgate.model.entries import DeliveryPolicy, TopicPolicy
from headgate.model.headers import Headers
from headgate.protocol import messages as m
from headgate.storage.object_store import Store
from shard.requests.topic_import import import_topic
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal
from tests.support.fakes.object_store import FakeStore
from tests.support.worlds.command_shard import decided


def segment(number: int, first: int, last: int, state: str = "active", **fields: Any) -> SegmentInfo:
    given = {"parents": (), "children": (), "next_offset": 0, "size_bytes": 0, "created_at_ms": 0}
    given |= {"sealed_at_ms": None, "label": None} | fields
    return SegmentInfo(segment=number, first_hash=first, last_hash=last, state=state, **given)


def topic(name: str, *segments: SegmentInfo, subscriptions: tuple[str, ...] = ()) -> TopicInfo:
    """Return a topic on shard 2 at layout epoch 7."""
    return TopicInfo(
        topic=name, topic_id=1, shard=2, layout_epoch=7, segments=list(segments), subscriptions=list(subscriptions)
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
    producers: list[ProducerInfo] = field(default_factory=list)
    subscriptions: list[SubscriptionInfo] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    created_again: dict[str, Iterator[int]] = field(default_factory=dict)
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
    has_nothing_to_change: bool = False
    """A seek moves nothing, and no segment can be pruned."""
    overview: ClusterInfo | None = None
    """What daemons know of each other; None: no shard has a leader."""
    source: TopicSource | None = None
    """What `headgate read` reads, whatever the name of the topic."""
    imports: ShardState = field(default_factory=lambda: ShardState(2))
    """State of the imported topics; a leader's decisions apply to it."""


class FakeAdmin:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def _find(self, name: str) -> TopicInfo:
        if name not in self.cluster.topics:
            raise RequestRejectedError("invalid", unknown_topic(name, self.cluster.topics))
        return self.cluster.topics[name]

    async def create_topic(self, name: str, *, segments: int) -> TopicInfo:
        self.cluster.calls.append(("create_topic", name, segments))
        self.cluster.topics[name] = topic(name, segment(0, 0, 65_535))
        return self.cluster.topics[name]

    async def import_topic(
        self, name: str, layout: ExternalLayout, *, complete: bool, dry_run: bool
    ) -> TopicImportResult:
        self.cluster.calls.append(("import_topic", name, complete, dry_run))
        state = self.cluster.imports
        request = m.ImportTopic(
            topic=name,
            token=f"t{len(self.cluster.calls)}",
            segments=list(layout.segments),
            positions=layout.positions,
            hash_bits=layout.hash_bits,
            source=layout.source,
            complete=complete,
            missing_parents=layout.missing_parents,
            dry_run=dry_run,
        )
        outcome = decided(import_topic(request, state, "alice"))
        if isinstance(outcome, Refusal):
            raise RequestRejectedError(outcome.verdict, outcome.reason)
        if outcome.entries:
            state.apply_all(outcome.entries, chunk=state.chunk + 1, at_ms=0)
        answer = outcome.answer(state).result
        if not dry_run:
            self.cluster.topics[name] = answer.topic
        return answer

    async def describe_cluster(self, *, blocked: bool = False) -> ClusterInfo:
        found = self.cluster.overview
        if found is None:
            raise NoLeaderError("no leader describes cluster 'local'")
        rows = tuple(row for row in found.subscriptions if row.blocked_segments or not blocked)
        return replace(found, subscriptions=rows)

    async def transfer_shard(self, shard: int, daemon: str) -> None:
        self.cluster.calls.append(("transfer_shard", shard, daemon))

    async def raise_feature_level(self, level: int) -> None:
        self.cluster.calls.append(("raise_feature_level", level))

    async def set_maintenance(self, daemon: str, *, on: bool) -> None:
        self.cluster.calls.append(("set_maintenance", daemon, on))

    async def list_topics(self) -> list[TopicInfo]:
        return list(self.cluster.topics.values())

    async def describe_topic(self, name: str) -> TopicInfo:
        return self._find(name)

    async def topic_settings(self, name: str) -> list[TopicSetting]:
        self._find(name)
        return [
            TopicSetting("auto_split", True, "setting"),
            TopicSetting("max_age_ms", 604_800_000, "topic"),
            TopicSetting("max_bytes", -1, "default"),
        ]

    async def split(self, name: str, number: int) -> TopicInfo:
        self.cluster.calls.append(("split", name, number))
        return self._find(name)

    async def merge(self, name: str, first: int, second: int) -> TopicInfo:
        self.cluster.calls.append(("merge", name, first, second))
        return self._find(name)

    async def set_topic_policy(self, name: str, policy: TopicPolicy, *, reset: list[str]) -> TopicInfo:
        self.cluster.calls.append(("set_topic_policy", name, policy, reset))
        return self._find(name)

    async def prune_topic(self, name: str, *, dry_run: bool) -> PruneResult:
        self._find(name)
        self.cluster.calls.append(("prune_topic", name, dry_run))
        kept = [UnprunedSegment(segment=2, reason="subscription 'billing' has acknowledged 5 of 12 records")]
        drained = [] if self.cluster.has_nothing_to_change else [0, 1]
        return PruneResult(segments=drained, retained=kept, abandoned=["audit"])

    async def delete_topic(self, name: str, *, force: bool) -> None:
        self.cluster.calls.append(("delete_topic", name, force))
        self._find(name)

    async def list_producers(self) -> list[ProducerInfo]:
        return self.cluster.producers

    async def describe_producer(self, name: str) -> list[ProducerInfo]:
        found = [each for each in self.cluster.producers if each.producer == name]
        if not found:
            raise RequestRejectedError("invalid", f"no shard has a producer {name!r}")
        return found

    async def delete_producer(self, name: str) -> None:
        await self.describe_producer(name)
        self.cluster.calls.append(("delete_producer", name))

    async def list_subscriptions(self, name: str | None) -> list[SubscriptionInfo]:
        return [each for each in self.cluster.subscriptions if name in (None, each.topic)]

    async def identity(self, *names: str) -> str:
        return f"{names} {next(self.cluster.created_again.get(names[-1], repeat(0)))}"

    async def describe_subscription(self, _: str, name: str) -> SubscriptionInfo:
        return next(each for each in self.cluster.subscriptions if each.subscription == name)

    async def create_subscription(self, name: str, subscription_name: str, **wanted: Any) -> SubscriptionInfo:
        self._find(name)
        self.cluster.calls.append(("create_subscription", name, subscription_name, wanted))
        for known in self.cluster.subscriptions:
            if (known.topic, known.subscription) == (name, subscription_name):
                return known
        created = replace(subscription(name, subscription_name), type=wanted["type"], consumers=[])
        self.cluster.subscriptions.append(created)
        return created

    async def delete_subscription(self, name: str, subscription_name: str, *, force: bool) -> None:
        self.cluster.calls.append(("delete_subscription", name, subscription_name, force))

    async def evict_consumer(self, name: str, subscription_name: str, consumer: str) -> None:
        self.cluster.calls.append(("evict_consumer", name, subscription_name, consumer))

    async def seek(self, name: str, subscription_name: str, **wanted: Any) -> SeekResult:
        self.cluster.calls.append(("seek", name, subscription_name, wanted))
        moves = [
            SegmentSeek(segment=0, from_offset=5, to_offset=2, end_offset=12),
            SegmentSeek(segment=1, from_offset=0, to_offset=4, end_offset=4),
            SegmentSeek(segment=2, from_offset=3, to_offset=3, end_offset=9),
        ]
        if self.cluster.has_nothing_to_change:
            moves = [replace(move, to_offset=move.from_offset) for move in moves]
        return SeekResult(seek_generation=7, moves=moves)

    async def parked_keys(self, _: str, __: str, key: bytes | None = None) -> list[ParkedKeyInfo]:
        return [each for each in self.cluster.parked if key in (None, each.key)]

    async def resume_key(self, name: str, subscription_name: str, key: bytes, *, drop: bool = False) -> None:
        self.cluster.calls.append(("resume_key", name, subscription_name, key, drop))

    async def set_order(self, name: str, subscription_name: str, order: str) -> SubscriptionInfo:
        self.cluster.calls.append(("set_order", name, subscription_name, order))
        return replace(subscription(name, subscription_name), order=order)

    async def set_delivery_policy(self, name: str, subscription_name: str, **policy: Any) -> SubscriptionInfo:
        self.cluster.calls.append(("set_delivery_policy", name, subscription_name, policy))
        chosen = DeliveryPolicy(
            max_deliveries=policy["max_deliveries"] or 0, dead_letter_topic=policy["dead_letter_topic"] or ""
        )
        return replace(subscription(name, subscription_name), policy=chosen)

    async def explain(self, topic_name: str, name: str, *, segment: int | None, consumer: str | None) -> Explanation:
        self.cluster.calls.append(("explain", topic_name, name, segment, consumer))
        return Explanation(
            topic=topic_name,
            subscription=name,
            summary=["All is explained."],
            segments=[SegmentReasons(segment=1, status="blocked", sentences=["Segment 1 waits.", "For 0."])],
            consumers=[ConsumerReasons(consumer="c1", connected=True, segments=[], sentences=["c1 is idle."])],
        )

    async def plan(self, topic_name: str, name: str, **changes: Any) -> Plan:
        self.cluster.calls.append(("plan", topic_name, name, changes))
        return Plan(
            topic=topic_name,
            subscription=name,
            created=[ProposedSegment(segment=8, first_hash=0, last_hash=0x3FFF, parents=[0], blocked_by=[0])],
            after_rebalance=[],
            after_drain=[ProposedMove(segment=8, before=None, after="c9")],
            consumers=[ConsumerSegmentCount(consumer="c9", before=None, after_rebalance=0, after_drain=1)],
        )


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
        self.commands: list[list[str]] = []
        """Every recount that was started."""
        self.recount: tuple[int, str] = 0, ""
        """Exit code and log of a recount."""

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

    def run_recount(self, command: list[str]) -> tuple[int, str]:
        self.commands.append(command)
        return self.recount
