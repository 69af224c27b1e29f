"""The state of a shard: a pure fold over the entries of its ledger.

`ShardState.apply` validates nothing, uses no randomness, and takes its time from the chunk, so
leader and contender reach the same state. The leader's state is ahead of the ledger by the entries
in flight. Nothing is sent before its chunk is durable, and a failed commit discards the state.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from headgate.model import entries as e
from headgate.model.external_topic import ExternalTopic, imported_segments
from headgate.model.identifiers import NUMBER_BITS
from headgate.model.layout import KEY_BUCKETS, Layout
from headgate.protocol.codec import user_of
from shard.state.consumers import RegisteredConsumer, RemovedConsumer
from shard.state.ledger_time import LedgerTime
from shard.state.producers import FinishedBatch, Producers
from shard.state.subscription import Subscription
from shard.state.topic import SegmentTail, Topic, Traffic

IDS_PER_SHARD_COUNT: Final = 1 << 40
"""A name has another shard for each number of shards, which counts its own ids: each number has a range of its own."""
TERM_BITS: Final = 32


@dataclass(slots=True)
class IdRange:
    """The ids of topics and subscriptions: a shard uses none twice, also if its ledger was put back.

    An id is the number of ids before it, with random bits of the term that hands it out. Tables, positions and files
    about a topic or subscription which a put-back ledger lacks therefore mean no later one. Two terms hand out the same
    id with a chance of 2^-32.
    """

    shard_counts: tuple[int, ...] = ()
    """All numbers of shards that the cluster has had, rising; empty: it has had only one."""
    number: int = 1
    """Number of the next id. Earlier versions used it as the id."""
    term_id: int = 0
    """`TermStarted.term_id` of the newest term; 0 if an earlier version began it."""

    @property
    def next_id(self) -> int:
        return self.number ^ (self.term_id % (1 << TERM_BITS) << NUMBER_BITS)

    def grow(self, counts: tuple[int, ...]) -> None:
        """Set the numbers of shards, and begin with the numbers of topics that are created by the last one."""
        self.shard_counts = counts
        self.number = max(self.number, (len(counts) - 1) * IDS_PER_SHARD_COUNT)


@dataclass(slots=True)
class Terms:
    """The terms of one shard: where each began, and its random id. Together they name the shard's history.

    A ledger that was put back to an older state has another history from its next term on. Leader epochs count terms,
    so the same number may name a lost term and a present one. The ids, of 63 random bits, differ.

    A point of a history is a chunk and the id of its term. Two histories that have a point in common are equal up to
    it. Points are exact for any age: the first chunks of all terms are kept anyway
    (docs/decisions/fencing-after-trim.md), and an id adds nine bytes to a snapshot.
    """

    start_chunks: list[int] = field(default_factory=list)
    """The first chunk of every term, ascending; members permanently."""
    ids: list[int] = field(default_factory=list)
    started_at_ms: int = 0
    """Ledger time of the newest term's first chunk."""

    @property
    def newest_id(self) -> int:
        """Id of the newest term; 0 before the first one."""
        return self.ids[-1] if self.ids else 0

    def begin(self, entry: e.TermStarted, chunk: int, at_ms: int) -> None:
        self.start_chunks.append(chunk)
        self.ids.append(entry.term_id)
        self.started_at_ms = at_ms

    def wrote(self, chunk: int, term_id: int) -> bool:
        """Return whether ``chunk``, which is not after the newest one, is of the term ``term_id``."""
        index = bisect_right(self.start_chunks, chunk) - 1
        return index >= 0 and self.ids[index] == term_id


Owned = Literal["topics", "segments", "subscriptions", "consumers"]


class Usage(dict[tuple[str, Owned], int]):
    """(user, what) → how many topics, segments, subscriptions or consumers the user has; nothing is 0.

    Counted with each change, so that a quota is judged without a scan. A segment belongs to the user who
    created its topic, and a consumer to the user who registered it.
    """

    def add(self, user: str, owned: Owned, count: int) -> None:
        """Add ``count``, which may be negative."""
        total = self.get((user, owned), 0) + count
        if total:
            self[user, owned] = total
        else:
            self.pop((user, owned), None)

    def add_topic(self, topic: Topic, times: Literal[1, -1] = 1) -> None:
        self.add(topic.user, "topics", times)
        self.add(topic.user, "segments", times * len(topic.layout.segments))
        for subscription in topic.subscriptions.values():
            self.add_subscription(subscription, times)

    def add_subscription(self, subscription: Subscription, times: Literal[1, -1] = 1) -> None:
        self.add(subscription.user, "subscriptions", times)
        for consumer in subscription.consumers.values():
            self.add_consumer(consumer, times)

    def add_consumer(self, consumer: RegisteredConsumer | None, times: Literal[1, -1] = 1) -> None:
        if consumer is not None:
            self.add(user_of(consumer.client_id), "consumers", times)


MAX_DELETED_MEMBERS: Final = 10_000
"""Per shard; beyond it, the earliest are forgotten. About 200 bytes each."""


@dataclass(slots=True)
class DeletedMembers:
    """The consumers of deleted subscriptions and topics, so that a late registration brings none of them back.

    A broker may deliver a copy of a registration after the subscription was deleted, even after its
    topic was created again. Ids do not help: a first registration names none.
    """

    members: list[tuple[str, str, RemovedConsumer]] = field(default_factory=list)
    """(topic, subscription, consumer), latest last; names, because ids are not used again."""

    def add(self, subscriptions: Iterable[Subscription], at_ms: int, forgotten_ms: int) -> None:
        """Add the consumers of ``subscriptions``, deleted at ``at_ms``, and forget those up to the other time."""
        members = dict.fromkeys(member for member in self.members if member[2].at_ms > forgotten_ms)
        for deleted in subscriptions:  # It may know the consumers of an earlier one of its name, which are members.
            members |= dict.fromkeys((deleted.topic, deleted.name, each) for each in deleted.consumers.known(at_ms))
        self.members = list(members)[-MAX_DELETED_MEMBERS:]

    def of(self, topic: str, subscription: str) -> list[RemovedConsumer]:
        """Return the consumers of all deleted subscriptions of that name in topics of that name."""
        return [consumer for *names, consumer in self.members if names == [topic, subscription]]


MAX_REMEMBERED_COMMANDS = 10_000
"""Commands stored by token, so that a repeated command is not executed twice. About 100 bytes each."""
LEAST_REMEMBERED_COMMANDS = 256
MEMORY_MS = 600_000
"""For how long more commands, deleted names and removed consumers are known: longer than a copy can be delayed."""


_FREQUENT = (e.RecordsAcknowledged, e.SegmentGranted, e.SegmentReleased, e.SegmentRevoked)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A pruned segment whose data is still to be deleted."""

    chunk: int
    at_ms: int


class ShardState:
    """The state after applying a ledger up to some entry."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.chunk = 0
        """Number of the chunk whose entries are being applied, or were applied last."""
        self.time = LedgerTime()
        self.term = e.TermStarted(leader_epoch=0, instance="")
        """The newest term. Before the first one, its epoch is 0."""
        self.trimmed_below = 1
        """Chunks below this number are deleted or about to be, except the first ones of `terms`."""
        self.terms = Terms()
        self.ids = IdRange()
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.deleted_members = DeletedMembers()
        self.producers = Producers()
        self.usage = Usage()
        self.tombstones: dict[tuple[int, int], Tombstone] = {}
        """(topic id, segment) whose data may still exist; the oldest tombstone first."""
        self.commands: dict[str, int] = {}
        """Token of an executed command → its ledger time; the oldest one first."""

    @property
    def at_ms(self) -> int:
        """Ledger time: the ``at_ms`` of the newest chunk."""
        return self.time.at_ms

    @property
    def forgotten_ms(self) -> int:
        """Ledger time up to which nothing is expected any more; 0: unknown, as this leader's clock may be ahead."""
        until_ms, steps = self.at_ms - MEMORY_MS, [after_ms for after_ms, _ in self.time.skips[-1:]]
        return until_ms if until_ms >= max(self.terms.started_at_ms, *steps, 0) else 0

    def release(self) -> None:
        """Free what is large. No entry is applied any more, and the state is shown as empty."""
        self.topics, self.topics_by_id, self.subscriptions = {}, {}, {}
        self.producers, self.usage = Producers(), Usage()

    def apply_all(self, entries: Iterable[e.AnyEntry], *, chunk: int, at_ms: int) -> None:
        self.begin_chunk(chunk, at_ms)
        for entry in entries:
            self.apply(entry)

    def begin_chunk(self, chunk: int, at_ms: int) -> None:
        """Set the chunk that the next entries belong to. Ledger time does not decrease if ``at_ms`` does."""
        assert chunk == self.chunk + 1, f"chunk {chunk} after {self.chunk}"
        self.chunk = chunk
        self.time.advance(at_ms)

    def apply(self, entry: e.AnyEntry) -> None:
        if isinstance(entry, _FREQUENT):
            # First, because a rebalance or a seek has thousands of them. No command is one.
            self.subscriptions[entry.subscription_id].apply(entry, self.time.at_ms)
            return
        match entry:
            case e.RecordsStored():
                self._records_stored(entry)
            case e.TermStarted():
                self.term, self.ids.term_id = entry, entry.term_id
                self.terms.begin(entry, self.chunk, self.at_ms)
            case e.ShardsGrown():
                self.ids.grow(entry.counts)
            case e.LedgerTrimmed():
                self.trimmed_below = max(self.trimmed_below, entry.below)
            case e.ProducerOpened():
                self.producers.open(entry, self.chunk, self.at_ms)
            case e.ProducersExpired():
                self.producers.expire(entry)
            case e.ProducerDeleted():
                self.producers.delete(entry.producer_id, self.at_ms, self.forgotten_ms)
            case e.SubscriptionCreated():
                self._subscription_created(entry)
            case e.ConsumerRegistered() | e.ConsumerRemoved():
                self._consumers_changed(entry)
            case e.SubscriptionDeleted():
                self._subscription_deleted(entry)
            case e.TopicPolicySet():
                self.topics_by_id[entry.topic_id].policy = entry.policy
            case e.TopicCreated():
                self._topic_created(entry)
            case e.TopicImported():
                created = imported_segments(entry.segments, entry.hash_bits, self.at_ms)
                layout, external = Layout.imported(created), ExternalTopic.imported(entry)
                self._add_topic(
                    Topic(entry.topic_id, entry.topic, layout, KEY_BUCKETS, {}, external=external, user=entry.user)
                )
            case e.TopicDeleted():
                self._topic_deleted(self.topics_by_id[entry.topic_id])
            case e.LayoutExtended():
                self._layout_extended(entry)
            case e.DataDeleted():
                for segment in entry.segments:
                    self.tombstones.pop((entry.topic_id, segment), None)
            case e.SegmentSplit() | e.SegmentsMerged() | e.SegmentRolled():
                self._layout_changed(entry)
            case e.SegmentsPruned():
                self._segments_pruned(entry)
            case _:
                assert isinstance(entry, e.SubscriptionEntry), f"an entry that nothing folds: {entry}"
                self.subscriptions[entry.subscription_id].apply(entry, self.at_ms)
        if isinstance(entry, e.TopicCommandEntry | e.SubscriptionCommandEntry | e.ProducerDeleted):
            self._remember_command(entry.token)

    def segments(self) -> set[tuple[int, int]]:
        """Return topic id and number of all segments that exist."""
        return {(topic_id, segment) for topic_id, topic in self.topics_by_id.items() for segment in topic.tails}

    def topic_of(self, entry: e.AnyEntry) -> Topic | None:
        return self.topics_by_id.get(entry.topic_id) if isinstance(entry, e.TopicEntry) else None

    def _records_stored(self, entry: e.RecordsStored) -> None:
        tails, chunk, at_ms = self.topics_by_id[entry.topic_id].tails, self.chunk, self.at_ms
        for placement in entry.placements:
            tail, count = tails[placement.segment], placement.count
            assert tail.next_offset == placement.first_offset, f"offset {placement.first_offset} is not the next one"
            size_bytes = entry.size_bytes * count // entry.count
            tail.add_index_entry(placement.first_offset, chunk)
            tail.next_offset += count
            tail.size_bytes += size_bytes
            tail.traffic.add(at_ms, count, size_bytes)
        if entry.producer_id is not None:
            batch = FinishedBatch(entry.sequence, chunk, entry.topic_id, entry.digest, entry.placements)
            self.producers.finish_batch(entry.producer_id, entry.producer_epoch, batch, entry.source_position, at_ms)

    def _subscription_created(self, entry: e.SubscriptionCreated) -> None:
        topic = self.topics_by_id[entry.topic_id]
        removed = self.deleted_members.of(topic.name, entry.subscription)
        subscription = Subscription.created(entry, topic.name, self.at_ms, removed)
        topic.subscriptions[entry.subscription] = subscription
        self.subscriptions[entry.subscription_id] = subscription
        self.ids.number += 1
        self.usage.add_subscription(subscription)

    def _subscription_deleted(self, entry: e.SubscriptionDeleted) -> None:
        subscription = self.subscriptions.pop(entry.subscription_id)
        del self.topics_by_id[entry.topic_id].subscriptions[subscription.name]
        self.deleted_members.add([subscription], self.at_ms, self.forgotten_ms)
        self.usage.add_subscription(subscription, -1)

    def _consumers_changed(self, entry: e.ConsumerRegistered | e.ConsumerRemoved) -> None:
        subscription = self.subscriptions[entry.subscription_id]
        self.usage.add_consumer(subscription.consumers.get(entry.consumer), -1)
        subscription.consumers.forget_removed(self.forgotten_ms)
        subscription.apply(entry, self.at_ms)
        self.usage.add_consumer(subscription.consumers.get(entry.consumer))

    def _topic_created(self, entry: e.TopicCreated) -> None:
        layout = Layout.initial(entry.segments, self.at_ms)
        tails = {segment: SegmentTail() for segment in layout.segments}
        self._add_topic(
            Topic(
                entry.topic_id,
                entry.topic,
                layout,
                entry.buckets,
                tails,
                first_segments=entry.segments,
                user=entry.user,
            )
        )

    def _add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
        self.ids.number += 1
        self.usage.add_topic(topic)
        if topic.external is not None:
            _set_external_end_offsets(topic)

    def _replace_layout(self, topic: Topic, layout: Layout) -> None:
        self.usage.add(topic.user, "segments", len(layout.segments) - len(topic.layout.segments))
        topic.layout = layout

    def _topic_deleted(self, topic: Topic) -> None:
        self.usage.add_topic(topic, -1)
        self.producers.drop_positions(topic.topic_id)
        del self.topics[topic.name], self.topics_by_id[topic.topic_id]
        for subscription in topic.subscriptions.values():
            del self.subscriptions[subscription.subscription_id]
        self.deleted_members.add(topic.subscriptions.values(), self.at_ms, self.forgotten_ms)
        self._add_tombstones(topic, sorted(topic.layout.segments))

    def _layout_changed(self, entry: e.SegmentSplit | e.SegmentsMerged | e.SegmentRolled) -> None:
        topic = self.topics_by_id[entry.topic_id]
        sealed = entry.segments if isinstance(entry, e.SegmentsMerged) else (entry.segment,)
        match entry:
            case e.SegmentSplit():
                layout = topic.layout.split(entry.segment, entry.end_offset, self.at_ms)
            case e.SegmentRolled():
                layout = topic.layout.roll(entry.segment, entry.end_offset, self.at_ms)
                [child] = layout.segments[entry.segment].children
                topic.tails[child] = SegmentTail(traffic=topic.tails[entry.segment].traffic)
            case e.SegmentsMerged():
                ends = dict(zip(entry.segments, entry.end_offsets, strict=True))
                layout = topic.layout.merge(*entry.segments, ends, self.at_ms)
        created = range(topic.layout.next_segment_id, layout.next_segment_id)
        self._replace_layout(topic, layout)
        for segment in sealed:
            topic.tails[segment].traffic = Traffic()
        for segment in created:
            topic.tails.setdefault(segment, SegmentTail())

    def _layout_extended(self, entry: e.LayoutExtended) -> None:
        topic = self.topics_by_id[entry.topic_id]
        assert topic.external is not None, f"topic {topic.name!r} is not external"
        created = imported_segments(entry.created, topic.external.hash_bits, self.at_ms)
        self._replace_layout(topic, topic.layout.extended(created, entry.sealed, self.at_ms))
        topic.external.add(entry.created)
        _set_external_end_offsets(topic)

    def _segments_pruned(self, entry: e.SegmentsPruned) -> None:
        topic = self.topics_by_id[entry.topic_id]
        ends = topic.record_ends(entry.segments)
        if topic.external is not None:
            for segment in entry.segments:
                topic.external.prune(topic.layout.segments[segment])
        topic.drop_tails(entry.segments)
        self._replace_layout(topic, topic.layout.prune(entry.segments))
        for subscription in topic.subscriptions.values():
            subscription.forget_segments(ends)
        self._add_tombstones(topic, entry.segments)

    def _add_tombstones(self, topic: Topic, segments: Iterable[int]) -> None:
        if topic.external is None:
            tombstone = Tombstone(self.chunk, self.at_ms)
            self.tombstones.update({(topic.topic_id, segment): tombstone for segment in segments})

    def _remember_command(self, token: str) -> None:
        if not token:
            return  # No client repeats it: no command, or the leader decided it without a request.
        self.commands[token] = self.at_ms
        forgotten_ms, oldest = self.forgotten_ms, next(iter(self.commands))
        while len(self.commands) > (
            LEAST_REMEMBERED_COMMANDS if self.commands[oldest] < forgotten_ms else MAX_REMEMBERED_COMMANDS
        ):
            del self.commands[oldest]
            oldest = next(iter(self.commands))


def _set_external_end_offsets(topic: Topic) -> None:
    """Set the end offset of each segment of an external topic; it is unknown, hence 0, for active segments."""
    tails = topic.tails
    for segment_id, segment in topic.layout.segments.items():
        tails.setdefault(segment_id, SegmentTail()).next_offset = segment.end_offset or 0
