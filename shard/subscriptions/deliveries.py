"""Decides which deliveries of a QUEUE begin and which fail, and what is due to dead-letter topics. Pure.

A delivery is named by segment, generation and delivery count. The first matching rule applies:

1. Only a registered consumer of a QUEUE that holds the key bucket of the record at this generation has deliveries.
2. The record exists.
3. The delivery is the next one of the record: its count is one above the failures so far. An earlier one has ended,
   and each one of an acknowledged record, e.g. a stored dead letter. It does not begin again, and its failure is
   counted already: repeating it has no further effect.
4. A segment keeps at most `record_limit` records that were begun or have failed. A further one waits. Those that are
   kept can always begin, fail and be acknowledged, so the limit ends.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain, islice, zip_longest
from typing import Final

from headgate.model import entries as e
from headgate.model.layout import SegmentSlice, buckets_of, segment_of
from headgate.protocol import requests
from headgate.protocol.replies import DeadLetter, DeliveriesBegun, Redelivery
from headgate.protocol.request_fields import ConsumerRequest
from shard.state.redelivery import Attempts
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.registration import Claims, consumer_error

MAX_RECORDS: Final = 10_000
"""Records of one segment that were begun or have failed. Each costs some 200 bytes in the leader."""
MAX_RECORDS_OF_SUBSCRIPTION: Final = 40_000
"""Its segments divide them equally."""
NEXT, ENDED = "next", "the delivery has ended"
FULL: Final = "the segment has too many records that were begun or have failed: settle some of them"
MAX_DEAD_LETTERS: Final = 100
"""Dead letters that one heartbeat reply contains."""


def record_limit(topic: TopicView) -> int:
    """Return how many records of each segment are kept (rule 4)."""
    return min(MAX_RECORDS, MAX_RECORDS_OF_SUBSCRIPTION // max(1, len(topic.tails)))  # An external one may have none.


class DeliveryRules:
    """Judges the deliveries that one request names."""

    def __init__(self, subscription: Subscription, topic: TopicView, request: ConsumerRequest, limit: int) -> None:
        self._subscription = subscription
        self._topic = topic
        self._error = consumer_error(subscription, request.consumer, request.incarnation)
        self._claims = Claims(subscription, request.consumer)
        self._limit = limit
        self._added: Counter[int] = Counter()
        """Segment → records that this request adds."""

    def judge(self, named: requests.BegunRecord | requests.NegativeAcknowledgement) -> str:
        """Return `NEXT`, `ENDED`, `FULL`, or why ``named`` is no delivery."""
        subscription, segment, offset = self._subscription, named.segment, named.offset
        if subscription.type != e.SubscriptionType.QUEUE:
            return f"subscription {subscription.name!r} is of type {subscription.type}: only QUEUE delivers again"
        held = self._error or self._claims.held(segment, named.generation)
        if isinstance(held, str):
            return held
        progress = subscription.progress.acknowledged_in(segment, named.bucket)
        if named.bucket not in buckets_of(held) or offset >= self._topic.tails[segment].next_offset:
            return f"generation {named.generation} of segment {segment} has no offset {offset} in bucket {named.bucket}"
        if offset < progress.position or progress.acknowledged_ranges.contains(offset):
            return ENDED
        known = subscription.redelivery.of(segment, offset)
        failures = 0 if known is None else known.failures
        if named.delivery > failures + 1:
            return f"delivery {named.delivery} of offset {offset} of segment {segment} follows only {failures} failures"
        if named.delivery <= failures or (known is not None and known.dead_letter):
            return ENDED
        if known is None and subscription.redelivery.records(segment) + self._added[segment] >= self._limit:
            return FULL
        self._added[segment] += known is None
        return NEXT


def judge_begun(
    subscription: Subscription, topic: TopicView, request: requests.BeginDeliveries, limit: int
) -> tuple[list[tuple[int, int, int, int]], DeliveriesBegun]:
    """Return the deliveries that begin, without those that had, and the reply."""
    rules = DeliveryRules(subscription, topic, request, limit)
    begun: list[tuple[int, int, int, int]] = []
    reply = DeliveriesBegun(rejected=[], delayed=[])
    for index, each in enumerate(request.records):
        verdict = rules.judge(each)
        known = subscription.redelivery.of(each.segment, each.offset)
        if verdict == FULL:
            reply.delayed.append(index)
        elif verdict != NEXT:
            reply.rejected.append((index, verdict))
        elif known is None or known.generation != each.generation:
            begun.append((each.segment, each.offset, each.bucket, each.generation))
    return begun, reply


def judge_failed(
    subscription: Subscription, topic: TopicView, batch: requests.AcknowledgeBatch, limit: int, now_ms: int
) -> tuple[list[tuple[int, int, int, int, str]], list[tuple[int, str]]]:
    """Return the deliveries that fail, without those that had, and (index, reason) of what does not count."""
    rules = DeliveryRules(subscription, topic, batch, limit)
    failed: dict[tuple[int, int], tuple[int, int, int, int, str]] = {}
    rejected: list[tuple[int, str]] = []
    for index, each in enumerate(batch.negative):
        verdict = rules.judge(each)
        if verdict == NEXT:
            until_ms = now_ms + each.delay_ms if each.delay_ms else 0
            key = each.segment, each.offset
            failed[key] = *key, each.bucket, until_ms, each.reason
        elif verdict != ENDED:
            rejected.append((index, verdict))
    return list(failed.values()), rejected


def redelivery_of(topic: TopicView, segment: int, offset: int, known: Attempts | None, now_ms: int) -> Redelivery:
    """Return when a record that has failed is delivered again. ``known`` None: never, it is acknowledged by now."""
    start_chunk = topic.tails[segment].chunk_of(offset)
    if known is None or known.dead_letter:
        return Redelivery(offset, 0, 0, start_chunk)
    return Redelivery(offset, known.failures + 1, max(0, known.not_before_ms - now_ms), start_chunk)


def failed_in(subscription: Subscription, topic: TopicView, held: SegmentSlice, now_ms: int) -> list[Redelivery]:
    """Return the records of ``held`` that have failed, for its grant."""
    segment, buckets = segment_of(held), buckets_of(held)
    return [
        redelivery_of(topic, segment, offset, each, now_ms)
        for offset, each in subscription.redelivery.attempts.get(segment, {}).items()
        if each.failures and each.bucket in buckets
    ]


def next_dead_letters(subscription: Subscription, topic: TopicView, *, held_up: bool) -> list[DeadLetter]:
    """Return the dead letters to send next, by number; ``held_up``: a topic takes none, so each has the same share."""
    redelivery = subscription.redelivery
    numbers: Iterable[int] = redelivery.dead
    if held_up:
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for number, (segment, offset) in redelivery.dead.items():
            by_topic[redelivery.attempts[segment][offset].topic].append(number)
        in_turns = filter(None, chain(*zip_longest(*by_topic.values())))
        numbers = sorted(islice(in_turns, MAX_DEAD_LETTERS))
    return [
        DeadLetter(
            number=number,
            died_at_ms=known.died_at_ms,
            segment=segment,
            offset=offset,
            start_chunk=topic.tails[segment].chunk_of(offset),
            deliveries=max(1, known.failures),
            reason=known.reason,
            topic=known.topic,
            parked_number=known.number,
        )
        for number in islice(numbers, MAX_DEAD_LETTERS)
        for segment, offset in [redelivery.dead[number]]
        for known in [redelivery.attempts[segment][offset]]
    ]


def stored_dead_letters(subscription: Subscription, request: requests.ConfirmDeadLetters) -> dict[int, tuple[int, int]]:
    """Return the dead records that ``request`` says are stored: number → (segment, offset)."""
    redelivery = subscription.redelivery
    return {
        number: (segment, offset)
        for number, died_at_ms in dict(request.stored).items()
        for segment, offset in filter(None, [redelivery.dead.get(number)])
        if redelivery.attempts[segment][offset].died_at_ms == died_at_ms
        if consumer_error(subscription, request.consumer, request.incarnation) is None
    }


def sender_of(subscription: Subscription) -> str | None:
    """Return the consumer that sends dead letters, in order: the first connected one by name; None: none does."""
    connected = (name for name, each in subscription.consumers.items() if each.disconnected_at_ms is None)
    return min(connected, default=None) if subscription.redelivery.dead else None
