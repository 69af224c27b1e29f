"""Random histories of one shard with every kind of entry. The same seed gives the same history."""

from pathlib import Path
from typing import Any

from headgate.model import entries as e
from headgate.model.layout import SegmentSlice, bucket_bounds, overlaps, segment_of, slice_of
from shard.state.subscription import Subscription
from tests.support.samples.ledgers import RandomLedger

Chunk = list[e.AnyEntry]


class History(RandomLedger):
    """A ledger in memory: `chunks` holds the entries of chunk 1, 2, …"""

    def __init__(self, seed: int, shard: int = 0) -> None:
        self.chunks: list[Chunk] = []
        self._pending: Chunk = []
        self.epochs = 0
        super().__init__(Path("/nowhere"), seed, shard)

    def add(self, *entries: e.AnyEntry) -> None:
        super().add(*entries)
        self._pending += entries

    def commit(self) -> int:
        """Finish the chunk."""
        if not self._open:
            self.epochs += 1
            self.add(e.TermStarted(leader_epoch=self.epochs, instance=f"d{self.epochs % 3}"))
        self.chunks.append(self._pending)
        self._pending, self._open = [], False
        return self.state.chunk

    def subscribe(
        self, topic_id: int, kind: e.SubscriptionType | None, positions: dict[int, int] | None = None, **_: Any
    ) -> int:
        number = self.state.ids.next_id
        return super().subscribe(
            topic_id,
            kind,
            positions,
            order="none" if kind == "QUEUE" else "strict",
            balance="load" if number % 3 == 0 else "count",
            user=f"u{number % 2}",
        )

    def at_ms(self, chunk: int) -> int:
        """Return the time at which a chunk was applied."""
        return (chunk - 1) * 1000

    def _step(self) -> None:
        chance = self.rng.random()
        if chance < 0.40:
            super()._step()
        elif chance < 0.45:
            self._external()
        elif chance < 0.70:
            self._produce()
        elif chance < 0.97:
            self._coordinate()
        elif chance < 0.985:
            self._open_producer() if self.rng.random() < 0.8 else self._expire_producers()
        elif self.state.topics_by_id and chance < 0.988:
            self._set_policy()
        elif self.state.tombstones and chance < 0.9885:
            topic_id, segment = next(iter(self.state.tombstones))
            self.add(e.DataDeleted(topic_id=topic_id, segments=[segment]))
        elif chance > 0.998:
            counts = self.state.ids.shard_counts or (1,)
            self.add(e.ShardsGrown(counts=(*counts, 2 * counts[-1])))
        else:
            self.add(e.LedgerTrimmed(below=self.rng.randrange(1, self.state.chunk + 2)))

    def _open_producer(self) -> None:
        name = self.rng.choice((None, "loader", "gateway"))
        known = None if name is None else self.state.producers.of_name(name)
        identity, epoch, replaced = 2**40 + self.state.chunk * 1000 + len(self._pending), 0, None
        if known is not None and self.rng.random() < 0.7:
            identity, epoch = known.producer_id, known.producer_epoch + 1
        elif known is not None:
            replaced = known.producer_id
        self.add(
            e.ProducerOpened(
                producer_id=identity,
                producer_epoch=epoch,
                token=self.token(),
                name=name,
                incarnation=0 if name is None else self.state.chunk,
                replaced_id=replaced,
                user=f"u{identity % 2}",
            )
        )

    def _expire_producers(self) -> None:
        """Expire what was used first; or delete a named producer."""
        producers = self.state.producers
        named = next(producers.named_after(None), None)
        if named is not None and self.rng.random() < 0.5:
            self.add(e.ProducerDeleted(producer_id=named.producer_id, token=self.token()))
        else:
            oldest, windows = list(producers.anonymous)[:1], list(producers.with_window)[:1]
            self.add(e.ProducersExpired(producer_ids=oldest, windows=windows))

    def _set_policy(self) -> None:
        rng = self.rng
        policy = e.TopicPolicy(
            auto_split=rng.choice((None, True, False)),
            auto_merge=rng.choice((None, True, False)),
            min_segments=rng.choice((None, 2)),
            max_segments=rng.choice((None, 64)),
            max_age_ms=rng.choice((None, -1, 60_000)),
            max_bytes=rng.choice((None, -1, 10**9)),
            ignore_subscriptions=rng.choice((None, True, False)),
        )
        topic_id = rng.choice(sorted(self.state.topics_by_id))
        self.add(e.TopicPolicySet(topic_id=topic_id, policy=policy, token=self.token()))

    def _produce(self) -> None:
        """Add a batch of an identity: records or acknowledgements."""
        if not self.state.producers or not self.stored():
            self._open_producer()
            return
        producer = self.state.producers[self.rng.choice(sorted(self.state.producers))]
        topic = self.state.topics_by_id[self.rng.choice(self.stored())]
        bump = self.rng.random() < 0.03
        identity = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch + bump,
            "sequence": 0 if bump else producer.next_sequence,
        }
        segment = self.rng.choice(topic.layout.active())
        first = topic.tails[segment.segment_id].next_offset
        if self.rng.random() < 0.8:
            count = self.rng.randrange(1, 4)
            placement = e.Placement(segment.segment_id, segment.first_hash, segment.last_hash, first, count)
            source = self.rng.choice((None, self.rng.randbytes(3)))
            self.add(
                e.RecordsStored(
                    topic_id=topic.topic_id,
                    count=count,
                    placements=[placement],
                    size_bytes=11 * count,
                    source_position=source,
                    digest=first.to_bytes(16, "big"),
                    **identity,
                )
            )
        elif topic.subscriptions and first:
            subscription = self.rng.choice(sorted(topic.subscriptions.values(), key=lambda known: known.name))
            self.add(
                e.RecordsAcknowledged(
                    **subscription.ids,
                    seek_generation=subscription.seek_generation,
                    ranges=[e.AcknowledgedRange(segment.segment_id, 0, self.rng.randrange(1, first + 1))],
                )
            )

    def _external(self) -> None:
        """Import an external topic, extend it, acknowledge it with a checkpoint, prune it, or delete it."""
        external = sorted(topic_id for topic_id, topic in self.state.topics_by_id.items() if topic.external is not None)
        chance = self.rng.random()
        if len(external) < 2 and (not external or chance < 0.2):
            positions: e.Positions = self.rng.choice(("offsets", "opaque"))
            bits = self.rng.choice((0, 128))
            root = e.ImportedSegment(segment=0, label="r", hashes=("0", str(2**128 - 1)) if bits else None)
            topic_id = self.state.ids.next_id
            self.add(
                e.TopicImported(
                    topic_id=topic_id,
                    topic=f"t{topic_id}",
                    token=self.token(),
                    segments=[root],
                    positions=positions,
                    hash_bits=bits,
                    source=self.rng.choice(("", "kinesis:x")),
                    user=f"u{topic_id % 2}",
                )
            )
            self.subscribe(topic_id, "STREAM")
            return
        topic = self.state.topics_by_id[self.rng.choice(external)]
        assert topic.external is not None
        segment = self.rng.choice(topic.layout.active()).segment_id
        if chance < 0.5:
            number = topic.layout.next_segment_id
            child = e.ImportedSegment(
                segment=number, label=f"s{number}", parents=[segment], hashes=topic.external.hashes.get(segment)
            )
            self.add(
                e.LayoutExtended(topic_id=topic.topic_id, token=self.token(), created=[child], sealed={segment: 1})
            )
        elif chance < 0.9:
            for subscription in topic.subscriptions.values():
                self.add(
                    e.RecordsAcknowledged(
                        **subscription.ids,
                        seek_generation=subscription.seek_generation,
                        ranges=[e.AcknowledgedRange(segment, 0, 0)],
                        checkpoints={
                            segment: e.Checkpoint(str(self.rng.randrange(9)), segment % 2, self.rng.randrange(9))
                        },
                    )
                )
        elif chance < 0.97:
            roots = [s for s, known in topic.layout.segments.items() if known.children and not known.parents]
            self.add(*(e.SegmentsPruned(topic_id=topic.topic_id, segments=[root]) for root in roots))
        else:
            self.delete_topic(topic.topic_id)

    def _coordinate(self) -> None:
        """Register, disconnect and remove consumers, and grant and revoke segments."""
        if not self.state.subscriptions:
            super()._step()
            return
        known = self.state.subscriptions[self.rng.choice(sorted(self.state.subscriptions))]
        ids = {"topic_id": known.topic_id, "subscription_id": known.subscription_id}
        chance, consumers = self.rng.random(), sorted(known.consumers)
        if not consumers or chance < 0.15:
            name = f"c{self.rng.randrange(4)}"
            incarnation = self.state.chunk
            member = {"consumer": name, "incarnation": incarnation, "client_id": f"u{incarnation % 2}/client-{name}"}
            self.add(
                e.ConsumerRegistered(
                    **ids,
                    **member,
                    supports_bucket_ranges=self.rng.random() < 0.5,
                    capacity=self.rng.choice((50, 100)),
                    host=f"host-{self.rng.randrange(3)}",
                    version=self.rng.choice(("", "0.1.0")),
                )
            )
            return
        if chance < 0.25:
            self._fail_deliveries(known, ids)
            self._park(ids)
            tails = sorted(self.state.topics_by_id[known.topic_id].tails)
            self.add(e.SegmentWeightsSet(**ids, weights={self.rng.choice(tails): self.rng.randrange(16, 999)}))
            return
        consumer = known.consumers[self.rng.choice(consumers)]
        member = {**ids, "consumer": consumer.consumer, "incarnation": consumer.incarnation}
        if chance < 0.33:
            self.add(e.ConsumerDisconnected(**member))
        elif chance < 0.40:
            self.add(e.ConsumerReconnected(**member))
        elif chance < 0.45:
            by_command = self.rng.random() < 0.5
            reason: e.LeaveReason = "evicted" if by_command else "left"
            self.add(e.ConsumerRemoved(**member, reason=reason, token=self.token() if by_command else ""))
        elif chance < 0.70:
            tails = self.state.topics_by_id[known.topic_id].tails
            wanted = [slice_of(n, *bounds) for n in tails for bounds in ((0, 0), (0, 8), (8, 16))]
            free = sorted(
                segment_slice
                for segment_slice in wanted
                if not any(overlaps(segment_slice, other) for other in known.holdings)
            )
            if free:
                grant = {"consumer": consumer.consumer, "generation": known.holdings.next_generation}
                self.add(e.SegmentGranted(**ids, **_named(self.rng.choice(free)), **grant))
        elif known.holdings and chance < 0.90:
            segment_slice = self.rng.choice(sorted(known.holdings))
            held = {**_named(segment_slice), "generation": known.holdings[segment_slice].generation}
            if self.rng.random() < 0.6:
                self.add(e.SegmentRevoked(**ids, **held))
            else:
                self.add(e.SegmentReleased(**ids, **held, reason=self.rng.choice(("confirmed", "stalled"))))
        else:
            segments = [self.rng.choice(sorted(self.state.topics_by_id[known.topic_id].tails))]
            self.add(e.SegmentsDrained(**ids, segments=segments, seek_generation=known.seek_generation))

    def _fail_deliveries(self, known: Subscription, ids: dict[str, int]) -> None:
        """Set the policy, and begin and fail a delivery."""
        max_deliveries, dead = self.rng.randrange(3), self.rng.choice(("", "dead"))
        progress_ms = self.rng.randrange(2)
        policy = e.DeliveryPolicy(
            max_deliveries=max_deliveries,
            ack_timeout_ms=1,
            dead_letter_topic=dead,
            max_processing_ms=progress_ms,
            ignored_by_retention=not progress_ms,
        )
        segment = self.rng.choice(sorted(self.state.topics_by_id[known.topic_id].tails))
        generation = max((each.generation for each in known.holdings.values()), default=1)
        begun, failed = ((segment, self.rng.randrange(9), self.rng.randrange(16)) for _ in range(2))
        self.add(
            e.DeliveryPolicySet(**ids, policy=policy, token=self.token()),
            e.DeliveriesBegun(**ids, records=[(*begun, generation)]),
            e.DeliveriesFailed(**ids, records=[(*failed, self.rng.randrange(9), "unlucky")]),
        )

    def _park(self, ids: dict[str, int]) -> None:
        """Park one key or another, with a record; store one, resume a key, and end that."""
        key, other = (f"key-{self.rng.randrange(5)}".encode() for _ in range(2))
        known = self.state.subscriptions[ids["subscription_id"]]
        redelivery, segments = known.redelivery, sorted(self.state.topics_by_id[ids["topic_id"]].tails)
        records = [(self.rng.choice(segments), self.rng.randrange(100), key)]
        acknowledged = {"seek_generation": known.seek_generation, "ranges": [], "parked": records}
        self.add(e.KeyParked(**ids, key=key, reason=self.rng.choice(("", "poison"))))
        self.add(e.RecordsAcknowledged(**ids, **acknowledged))
        sent = [number for number, place in redelivery.dead.items() if redelivery.attempts[place[0]][place[1]].key]
        self.add(e.ParkedRecordsStored(**ids, numbers=sent[: self.rng.randrange(2)]))
        self.add(e.KeyResumed(**ids, key=other, dropped=self.rng.random() < 0.5, token=self.token()))
        if other in redelivery.parked.resuming and self.rng.random() < 0.2:
            self.add(e.KeyUnparked(**ids, key=other))


def _named(segment_slice: SegmentSlice) -> dict[str, int]:
    first_bucket, end_bucket = bucket_bounds(segment_slice)
    return {"segment": segment_of(segment_slice), "first_bucket": first_bucket, "end_bucket": end_bucket}
