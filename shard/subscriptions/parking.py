"""Decides what a STREAM subscription parks and resumes. Pure.

A key is parked by the consumer that holds it. The first matching rule decides:

1. Only a registered consumer of a STREAM that holds the key at this generation parks it. The request of one that has
   lost its segment, perhaps without knowing, comes too late and changes nothing: the next holder gets the record.
2. The subscription has a dead-letter topic, and at most `MAX_PARKED_KEYS` parked keys.
3. The record exists. If it is acknowledged, this is a late copy of a request, and changes nothing; so does one for a
   resumed record that was processed, or of an earlier resumption, or for a key that is parked already.

A parked record is acknowledged and recorded as parked by one entry, so it is never lost between the two:

4. It counts if an acknowledgement of the same holding covers it, and its bucket has not acknowledged it before. So a
   repetition parks nothing twice.
5. A segment keeps at most `record_limit` records that are not in the dead-letter topic yet, or those of one larger
   acknowledgement. A further one waits. After a seek back, so does one of a record that is on its way there, if its
   key would not deliver it (it was dropped), or would deliver it before an earlier record, with a later number by now.
6. A resumed key is parked no more once its consumer says that it has processed the last record, and that it parks no
   more of them. Without an order a parent and its children have other consumers: what one of those still parks parks
   the key again, and resumes it.
"""

from collections import Counter, defaultdict
from itertools import islice
from typing import Final

from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, SegmentSlice, buckets_of, key_bucket, segment_hash, segment_of
from headgate.protocol.replies import ResumingKey
from headgate.protocol.requests import AcknowledgeBatch, Acknowledgement, ParkedRecord, ParkKey, UnparkKey
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.deliveries import MAX_RECORDS_OF_SUBSCRIPTION
from shard.subscriptions.registration import Claims, consumer_error

MAX_PARKED_KEYS: Final = 10_000
"""The limit of one subscription. Each costs some 300 bytes in the leader, and up to 256 in a grant."""
MAX_RESUMING_KEYS: Final = 100
"""Keys that one heartbeat reply names. A consumer resumes them one after the other."""


def has_key(topic: TopicView, held: SegmentSlice, key: bytes) -> bool:
    segment = topic.layout.segments[segment_of(held)]
    return segment.first_hash <= segment_hash(key) <= segment.last_hash and key_bucket(key, KEY_BUCKETS) in buckets_of(
        held
    )


def _held(subscription: Subscription, request: ParkKey | UnparkKey) -> SegmentSlice | str:
    error = consumer_error(subscription, request.consumer, request.incarnation)
    return error or Claims(subscription, request.consumer).held(request.segment, request.generation)


def judge_park(
    subscription: Subscription, topic: TopicView, request: ParkKey, limit: int = MAX_PARKED_KEYS
) -> e.KeyParked | str | None:
    """Return the entry that parks a key, None if nothing is to be done, or why it is not parked (rules 1 to 3)."""
    name, segment, offset = f"subscription {subscription.name!r}", request.segment, request.offset
    if subscription.type != e.SubscriptionType.STREAM:
        return f"{name} is of type {subscription.type}: only a STREAM parks keys"
    held = _held(subscription, request)
    if isinstance(held, str):
        return None
    redelivery = subscription.redelivery
    if not has_key(topic, held, request.key) or (offset >= topic.tails[segment].next_offset and not request.number):
        return f"generation {request.generation} of segment {segment} has no offset {offset} with this key"
    known = redelivery.parked.keys.get(request.key)
    if request.number:
        late = known is None or request.key not in redelivery.parked.resuming or request.number <= known.resumed
        late = late or (known is not None and request.parking not in (0, known.number))
    else:
        bucket = key_bucket(request.key, KEY_BUCKETS)
        late = known is not None or offset < subscription.progress.acknowledged_in(segment, bucket).position
    if late:
        return None
    if known is None and not redelivery.policy.dead_letter_topic:
        return (
            f"{name} has no dead-letter topic for the records of a parked key: headgate subscription set "
            f"{topic.name} {subscription.name} --dead-letter TOPIC"
        )
    if known is None and len(redelivery.parked.keys) >= limit:
        return f"{name} has {limit} parked keys, the most that are kept: resume or drop some of them"
    return e.KeyParked(**subscription.ids, key=request.key, reason=request.reason)


def judge_unpark(subscription: Subscription, topic: TopicView, request: UnparkKey) -> e.KeyUnparked | str | None:
    """Return the entry by which a key is parked no more, None if it is that already, or why it is parked (rule 6)."""
    held = _held(subscription, request)
    if isinstance(held, str):
        return held
    parked = subscription.redelivery.parked
    known = parked.keys.get(request.key)
    if known is None or known.number != request.parking:
        return None
    is_done = request.key in parked.resuming and known.resumed == known.last == request.last
    if not is_done or not has_key(topic, held, request.key):
        return f"key {request.key!r} of subscription {subscription.name!r} has parked records that were not processed"
    return e.KeyUnparked(**subscription.ids, key=request.key)


class ParkedInBatch:
    """What one batch of acknowledgements parks and resumes."""

    def __init__(self, subscription: Subscription, topic: TopicView, batch: AcknowledgeBatch, limit: int) -> None:
        """``limit``: parked records that a segment keeps."""
        self.parked: list[tuple[int, int, bytes]] = []
        """As the entry names them."""
        self._subscription = subscription
        self._topic = topic
        self._batch = batch
        self._limit = limit
        self._accepted: dict[tuple[int, int], SegmentSlice] = {}
        self._pending: dict[tuple[int, int], list[ParkedRecord]] = {}
        for each in batch.parked:
            self._pending.setdefault((each.segment, each.generation), []).append(each)
        self._added: Counter[int] = Counter()
        """Segment → records that this batch parks."""
        self._overtaken: set[tuple[int, int]] | None = None
        """Where the parked records are of whose key an earlier one has a later number; None: not computed yet."""
        self._again: dict[bytes, None] = {}
        """Keys that are parked again (rule 6)."""

    def accept(self, acknowledgement: Acknowledgement, held: SegmentSlice) -> str | None:
        """Park what an acknowledgement covers (rules 4 and 5), or return why it does not count."""
        segment, holding = acknowledgement.segment, (acknowledgement.segment, acknowledgement.generation)
        progress, redelivery = self._subscription.progress, self._subscription.redelivery
        covered = [
            each
            for each in self._pending.get(holding, ())
            if each.offset < acknowledgement.end_offset
            and each.offset >= progress.acknowledged_in(segment, key_bucket(each.key, KEY_BUCKETS)).position
        ]
        new = {key for _, _, key in self.parked}
        keys, has_topic = redelivery.parked.keys, bool(redelivery.policy.dead_letter_topic)
        for each in covered:
            parks = each.key in keys or (has_topic and len(keys) + len(self._again) < MAX_PARKED_KEYS)
            if not parks or not has_key(self._topic, held, each.key):
                return f"offset {each.offset} of segment {segment} is not of a key that is parked there"
            known = redelivery.of(segment, each.offset)
            if known is None:
                new.add(each.key)
            elif each.key not in keys or known.number <= keys[each.key].resumed:
                return f"offset {each.offset} of segment {segment} is not yet in the dead-letter topic, and was dropped"
            elif each.key in new or self._has_later_before(segment, each.offset):
                return (
                    f"offset {each.offset} of segment {segment} is not yet in the dead-letter topic, and an earlier "
                    "record of its key is to be there once more"
                )
        kept = redelivery.records(segment) + self._added[segment]
        limit = self._limit if kept else MAX_RECORDS_OF_SUBSCRIPTION - len(redelivery.dead) - len(self.parked)
        if covered and kept + len(covered) > limit:
            more = f"{kept} parked records that are not yet dead letters, and {len(covered)} more would exceed {limit}"
            return f"segment {segment} has {more}: headgate explain says what they wait for"
        self.parked += ((segment, each.offset, each.key) for each in covered)
        self._added[segment] += len(covered)
        self._again |= dict.fromkeys(each.key for each in covered if each.key not in keys)
        later = self._pending.get(holding, ())
        self._pending[holding] = [each for each in later if each.offset >= acknowledgement.end_offset]
        self._accepted[holding] = held
        return None

    def _has_later_before(self, segment: int, offset: int) -> bool:
        """Return whether an earlier record of the same key has a later number than this one (rule 5)."""
        if self._overtaken is None:
            redelivery, newest, self._overtaken = self._subscription.redelivery, Counter[bytes](), set()
            for at in sorted(redelivery.dead.values()):
                dead = redelivery.attempts[at[0]][at[1]]
                if dead.number < newest[dead.key]:
                    self._overtaken.add(at)
                newest[dead.key] = max(newest[dead.key], dead.number)
        return (segment, offset) in self._overtaken

    @property
    def parked_again(self) -> list[e.AnyEntry]:
        ids, reason = self._subscription.ids, "it was resumed while another consumer had its records"
        return [
            entry
            for key in self._again
            for entry in (
                e.KeyParked(**ids, key=key, reason=reason),
                e.KeyResumed(**ids, key=key, dropped=False, token=""),
            )
        ]

    @property
    def resumed(self) -> list[tuple[bytes, int]]:
        """What the batch says about resumed keys, as far as it counts: also when its key was parked again."""
        found: dict[bytes, int] = {}
        for each in self._batch.resumed:
            held = self._accepted.get((each.segment, each.generation))
            known = self._subscription.redelivery.parked.keys.get(each.key)
            if held is None or known is None or not has_key(self._topic, held, each.key):
                continue
            if max(known.resumed, found.get(each.key, 0)) < each.number <= known.last:
                found[each.key] = each.number
        return list(found.items())


def resuming_keys(subscription: Subscription, topic: TopicView, consumer: str) -> list[ResumingKey]:
    """Return the keys in the segments of ``consumer`` that are being resumed, those that were resumed first.

    So a key is named until its resumption ends, however many are resumed after it.
    """
    redelivery, parked = subscription.redelivery, subscription.redelivery.parked
    if not parked.resuming:
        return []
    holders: defaultdict[bytes, list[SegmentSlice]] = defaultdict(list)
    for held in subscription.holdings.held_by(consumer):
        described = topic.layout.segments[segment_of(held)]
        for key in parked.within(described.first_hash, described.last_hash):
            holders[key].append(held)
    resuming = ((held, key) for key in parked.resuming for held in holders.get(key, ()) if has_key(topic, held, key))
    found = list(islice(resuming, MAX_RESUMING_KEYS))
    unstored: dict[bytes, int] = {}
    for segment, offset in redelivery.dead.values() if found else ():
        dead = redelivery.attempts[segment][offset]
        unstored.setdefault(dead.key, dead.number)
    return [
        ResumingKey(
            segment_of(held),
            subscription.holdings[held].generation,
            key,
            known.number,
            known.topic,
            known.resumed,
            known.last,
            unstored.get(key, known.last + 1) - 1,
        )
        for held, key in found
        for known in [parked.keys[key]]
    ]
