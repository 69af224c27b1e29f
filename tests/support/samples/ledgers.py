"""Ledgers for tests, written with the real state and chunk format, by hand or at random."""

import random
from pathlib import Path
from typing import Any

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.objects import chunk_folder, chunk_name
from headgate.model import entries as e
from headgate.model.headers import header_bytes
from headgate.model.layout import KEY_BUCKETS, SegmentState
from shard.state.shard_state import ShardState
from tests.support.samples.chunks import add_record
from tests.support.samples.stored_batches import stored_batch

RECORD_BYTES = 11
"""Of key, value and headers, which every third record has."""
EMPTY_CHUNKS = 0.1
"""Fraction of empty chunks in a random ledger."""
BUCKET_RANGES = ((0, 8), (8, 16), (0, 4), (4, 8), (15, 16))
"""Key buckets of random acknowledgements."""


class WrittenLedger:
    """One shard's ledger in a folder, and the state after its entries."""

    def __init__(self, root: Path, shard: int = 0) -> None:
        self.root = root
        self.shard = shard
        self.state = ShardState(shard)
        self._builder = ChunkBuilder()
        self._open = False
        self._token = 0

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def path(self, number: int) -> Path:
        return self.root / chunk_folder(self.shard) / chunk_name(number)

    def add(self, *entries: e.AnyEntry) -> None:
        """Apply entries and add them to the open chunk."""
        if not self._open:
            self.state.begin_chunk(self.state.chunk + 1, self.state.chunk * 1000)
            self._open = True
        for entry in entries:
            self.state.apply(entry)
            topic = self.state.topic_of(entry)
            self._builder.add(entry, None if topic is None else topic.layout)

    def commit(self) -> int:
        """Write the chunk; return its number."""
        if not self._open:
            self.add(e.TermStarted(leader_epoch=1, instance="test"))
        number = self.state.chunk
        path = self.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._builder.encode(shard=self.shard, number=number, leader_epoch=1, at_ms=number * 1000))
        self._builder, self._open = ChunkBuilder(), False
        return number

    def barrier(self) -> int:
        """Write an empty chunk, as a leader does for a barrier; return its number."""
        assert not self._open, "commit first"
        self.state.begin_chunk(self.state.chunk + 1, self.state.chunk * 1000)
        self._open = True
        return self.commit()

    def token(self) -> str:
        self._token += 1
        return str(self._token)

    def topic(self, segments: int = 1) -> int:
        topic_id = self.state.ids.next_id
        user = f"u{topic_id % 2}"
        self.add(
            e.TopicCreated(topic_id=topic_id, topic=f"t{topic_id}", segments=segments, token=self.token(), user=user)
        )
        return topic_id

    def subscribe(
        self,
        topic_id: int,
        kind: e.SubscriptionType | None,
        positions: dict[int, int] | None = None,
        *,
        order: e.Order = "strict",
        **more: Any,
    ) -> int:
        subscription_id = self.state.ids.next_id
        self.add(
            e.SubscriptionCreated(
                topic_id=topic_id,
                subscription_id=subscription_id,
                subscription=f"s{subscription_id}",
                subscription_type=kind,
                order=order,
                positions=positions or {},
                **more,
            )
        )
        return subscription_id

    def store(self, topic_id: int, segment: int, count: int) -> None:
        first = self.state.topics_by_id[topic_id].tails[segment].next_offset
        self.add(stored_batch(0, first, count, segment, topic_id=topic_id, size_bytes=count * RECORD_BYTES))
        for offset in range(first, first + count):
            headers = (("n", b"\xff%d" % (offset % 10)),) if offset % 3 == 0 else ()
            value = b"12345678"[: 8 - header_bytes(headers)]
            record = {"topic_id": topic_id, "segment": segment, "key": b"key"}
            add_record(self._builder, offset, offset, value, headers, **record)

    def acknowledge(
        self, topic_id: int, subscription_id: int, *ranges: tuple[int, ...], seek_generation: int | None = None
    ) -> None:
        current = self.state.subscriptions[subscription_id].seek_generation
        self.add(
            e.RecordsAcknowledged(
                topic_id=topic_id,
                subscription_id=subscription_id,
                seek_generation=current if seek_generation is None else seek_generation,
                ranges=[e.AcknowledgedRange(*each) for each in ranges],
            )
        )

    def seek(self, topic_id: int, subscription_id: int, positions: dict[int, int]) -> None:
        generation = self.state.subscriptions[subscription_id].seek_generation + 1
        self.add(
            e.SubscriptionSeek(
                topic_id=topic_id,
                subscription_id=subscription_id,
                seek_generation=generation,
                positions=positions,
                token=self.token(),
            )
        )

    def split(self, topic_id: int, segment: int) -> None:
        end = self.state.topics_by_id[topic_id].tails[segment].next_offset
        self.add(e.SegmentSplit(topic_id=topic_id, segment=segment, end_offset=end, token=self.token()))

    def roll(self, topic_id: int, segment: int) -> None:
        end = self.state.topics_by_id[topic_id].tails[segment].next_offset
        self.add(e.SegmentRolled(topic_id=topic_id, segment=segment, end_offset=end, reason="age"))

    def merge(self, topic_id: int, first: int, second: int) -> None:
        tails = self.state.topics_by_id[topic_id].tails
        ends = (tails[first].next_offset, tails[second].next_offset)
        self.add(e.SegmentsMerged(topic_id=topic_id, segments=(first, second), end_offsets=ends, token=self.token()))

    def prune(self, topic_id: int, *segments: int) -> None:
        self.add(e.SegmentsPruned(topic_id=topic_id, segments=list(segments)))

    def delete_topic(self, topic_id: int) -> None:
        self.add(e.TopicDeleted(topic_id=topic_id, token=self.token()))

    def unsubscribe(self, topic_id: int, subscription_id: int) -> None:
        self.add(e.SubscriptionDeleted(topic_id=topic_id, subscription_id=subscription_id, token=self.token()))


class RandomLedger(WrittenLedger):
    """A ledger that grows by valid but unlikely steps, reproducibly by seed."""

    def __init__(self, root: Path, seed: int, shard: int = 0) -> None:
        super().__init__(root, shard)
        self.rng = random.Random(seed)
        self.reset_segments: dict[int, set[int]] = {}
        for _ in range(2):
            self._new_topic()
        self.commit()

    def grow(self, chunks: int) -> None:
        for _ in range(chunks):
            if self.rng.random() < EMPTY_CHUNKS:
                self.barrier()
                continue
            for _ in range(self.rng.randrange(1, 12)):
                self._step()
            self.commit()

    def stored(self) -> list[int]:
        """Return the topics that are not external."""
        return sorted(topic_id for topic_id, topic in self.state.topics_by_id.items() if topic.external is None)

    def _new_topic(self) -> None:
        topic_id = self.topic(self.rng.randrange(1, 4))
        for kind in ("STREAM", "QUEUE", "CHECKPOINT", None):
            self.subscribe(topic_id, kind, {0: 3} if self.rng.random() < 0.3 else {})

    def _step(self) -> None:
        if not self.stored():
            self._new_topic()
        topic_id = self.rng.choice(self.stored())
        topic = self.state.topics_by_id[topic_id]
        active = [segment.segment_id for segment in topic.layout.active()]
        chance = self.rng.random()
        if chance < 0.35:
            self.store(topic_id, self.rng.choice(active), self.rng.randrange(1, 9))
        elif chance < 0.80 and topic.subscriptions:
            self._acknowledge(topic_id)
        elif chance < 0.86 and topic.subscriptions:
            self._seek(topic_id)
        elif chance < 0.90 and len(active) < 6:
            (self.split if self.rng.random() < 0.8 else self.roll)(topic_id, self.rng.choice(active))
        elif chance < 0.93:
            ordered = sorted(topic.layout.active(), key=lambda segment: segment.first_hash)
            if len(ordered) > 1:
                at = self.rng.randrange(len(ordered) - 1)
                self.merge(topic_id, ordered[at].segment_id, ordered[at + 1].segment_id)
        elif chance < 0.96:
            oldest = [
                segment
                for segment, known in topic.layout.segments.items()
                if known.state is SegmentState.SEALED and not topic.layout.ancestors(segment)
            ]
            if oldest:
                self.prune(topic_id, self.rng.choice(sorted(oldest)))
        elif chance < 0.98 and topic.subscriptions:
            name = self.rng.choice(sorted(topic.subscriptions))
            self.unsubscribe(topic_id, topic.subscriptions[name].subscription_id)
        elif chance < 0.985:
            self.delete_topic(topic_id)
        elif len(self.state.topics_by_id) < 4:
            self._new_topic()

    def _acknowledge(self, topic_id: int) -> None:
        topic = self.state.topics_by_id[topic_id]
        subscription = topic.subscriptions[self.rng.choice(sorted(topic.subscriptions))]
        identity = subscription.subscription_id
        if subscription.type is None:
            self.add(
                e.SubscriptionConfigured(
                    topic_id=topic_id, subscription_id=identity, subscription_type="STREAM", order="strict"
                )
            )
        if subscription.type == "CHECKPOINT":
            return
        segment = self.rng.choice(sorted(topic.tails))
        stale = self.rng.random() < 0.2 and segment in self.reset_segments.get(identity, ())
        generation = subscription.seek_generation - 1 if stale else subscription.seek_generation
        end = topic.tails[segment].next_offset
        if end == 0:
            return
        buckets = self.rng.choice(BUCKET_RANGES) if self.rng.random() < 0.5 else ()
        if subscription.type == "QUEUE":
            first = self.rng.randrange(end)
            last = min(end, first + self.rng.randrange(1, 4))
            self.acknowledge(topic_id, identity, (segment, first, last, *buckets), seek_generation=generation)
        else:
            end = self.rng.randrange(1, end + 1)
            self.acknowledge(topic_id, identity, (segment, 0, end, *buckets), seek_generation=generation)

    def _seek(self, topic_id: int) -> None:
        topic = self.state.topics_by_id[topic_id]
        subscription = topic.subscriptions[self.rng.choice(sorted(topic.subscriptions))]
        segments = self.rng.sample(sorted(topic.tails), self.rng.randrange(1, len(topic.tails) + 1))
        positions = {segment: self.rng.randrange(topic.tails[segment].next_offset + 1) for segment in segments}
        self.seek(topic_id, subscription.subscription_id, positions)
        self.reset_segments[subscription.subscription_id] = set(segments)


def counted_by_hand(state: ShardState) -> set[tuple[object, ...]]:
    """Return every backlog, counted offset by offset.

    (topic, subscription, segment, seek generation, records, sealed, timestamp of the oldest one)
    """
    found: set[tuple[object, ...]] = set()
    for topic in state.topics_by_id.values():
        for subscription in topic.subscriptions.values():
            for segment, known in topic.layout.segments.items():
                left = []
                for bucket in range(KEY_BUCKETS):
                    progress = subscription.progress.acknowledged_in(segment, bucket)
                    acknowledged = set(range(progress.position))
                    for first, end in progress.acknowledged_ranges:
                        acknowledged.update(range(first, end))
                    left += set(range(topic.tails[segment].next_offset)) - acknowledged
                tracked = subscription.type in {"STREAM", "QUEUE"}
                found.add(
                    (
                        topic.topic_id,
                        subscription.subscription_id,
                        segment,
                        subscription.seek_generation,
                        -(-len(left) // KEY_BUCKETS) if tracked else None,
                        known.state is SegmentState.SEALED,
                        # `store` uses the offset as the timestamp.
                        min(left) if tracked and left else None,
                    )
                )
    return found
