"""Judges from the outside whether a topic kept headgate's guarantees. Pure.

The input is the outcomes at the producer, the ledger and the deliveries to consumers; the output is a list
of violations. Nothing that a daemon reports is used. The counter of each key rises by one, so loss, duplication and
reordering are visible without knowledge of segments. The rules:

1. A record whose delivery succeeded is in the ledger; one that failed for certain is not. None is refused for good.
2. A record is in the ledger once, and the records of a key are in the order in which they were sent.
3. Each consumer's delivery is what the ledger has at that place, and each subscription gets every record.
4. headgate.client_history.judge finds nothing in what the programs saw: STREAM keeps the order of keys, and more.
5. STREAM: a segment is granted after every ancestor is acknowledged to its end.
6. A record is delivered again only for a reason: within one run of a consumer at most once for each grant of its
   segment, and never below the position that was acknowledged when the segment was granted.

How long a run waits for deliveries (`Patience`): as long as anything that it observes changes. After a time without any
change it gives up. What is missing then is *not delivered yet*, which is no violation.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.client_history.judge import Event, judge
from headgate.ledger.chunk import Chunk
from headgate.model import entries as e
from headgate.model.layout import Layout
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription

STALLED_SECONDS: Final = 300.0
"""Without any change for this long, a run has stalled. A start of Spark on a busy machine takes a fifth of it."""
EXAMPLES: Final = 5
"""Violations of one kind that a report shows."""


class Patience:
    """Watches whether anything changes."""

    def __init__(self, now: float, stalled_seconds: float = STALLED_SECONDS) -> None:
        self._stalled_seconds = stalled_seconds
        self._changed_at = now
        self._observed: object = None

    def ended(self, now: float, observed: object) -> bool:
        """Record what is observed at ``now`` (seconds of any steady clock); return whether the run has stalled."""
        if observed != self._observed:
            self._observed, self._changed_at = observed, now
        return now - self._changed_at >= self._stalled_seconds


_OUTCOMES = {"committed": "stored", "failed": "not stored", "rejected": "not stored"}


@dataclass(frozen=True, slots=True)
class SentRecord:
    key: str
    counter: int
    sent_ns: int
    done_ns: int
    outcome: str
    """``committed``, ``failed``: certainly not stored, ``unknown``, or ``rejected``: refused for good."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    segment: int
    offset: int
    key: str
    counter: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record that reached a consumer. All processes of the machine share the clock."""

    at_ns: int
    consumer: str
    """The name of the consumer and the number of its run: ``billing-1#2``."""
    segment: int
    offset: int
    key: str
    counter: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionEvidence:
    name: str
    kind: e.SubscriptionType
    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class TopicEvidence:
    """Everything about one topic, which is the only one of its shard."""

    topic: str
    shard: int
    sent: Sequence[SentRecord]
    stored: Sequence[StoredRecord]
    chunks: Sequence[Chunk]
    subscriptions: Sequence[SubscriptionEvidence]


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a guarantee, with an example."""

    invariant: str
    detail: str


def judge_topic(topic: TopicEvidence, unfinished: Collection[str] = ()) -> list[Violation]:
    """Return what is wrong with one topic. Subscriptions that are ``unfinished`` need not have every record yet."""
    found = [
        *judged_ledger(topic.sent, topic.stored),
        *rejected(topic.sent),
        *judged(
            topic.sent,
            {each.name: each.deliveries for each in topic.subscriptions},
            {each.name for each in topic.subscriptions if each.kind == e.SubscriptionType.STREAM},
            complete=not unfinished,
        ),
    ]
    for each in topic.subscriptions:
        of_each = list(judge_subscription(topic, each, complete=each.name not in unfinished))
        found += [Violation(violation.invariant, f"{each.name}: {violation.detail}") for violation in of_each]
    return found


def judge_subscription(
    topic: TopicEvidence, subscription: SubscriptionEvidence, *, complete: bool
) -> Iterator[Violation]:
    deliveries, about = subscription.deliveries, (topic.chunks, topic.shard, topic.topic, subscription.name)
    if complete:
        yield from undelivered(topic.stored, deliveries)
    yield from altered(topic.stored, deliveries)
    if subscription.kind != e.SubscriptionType.CHECKPOINT:  # The leader grants it nothing.
        yield from repeated_without_reason(deliveries, grants(*about))
    if subscription.kind == e.SubscriptionType.STREAM:
        yield from children_before_parents(*about)


def examples(violations: Iterable[Violation]) -> list[Violation]:
    shown: Counter[str] = Counter()
    found = []
    for violation in violations:
        shown[violation.invariant] += 1
        if shown[violation.invariant] <= EXAMPLES:
            found.append(violation)
    return found


def judged_ledger(sent: Iterable[SentRecord], stored: Iterable[StoredRecord]) -> list[Violation]:
    """Return what is lost, stored twice or out of order, or stored although its producer learned that it is not.

    For the independent judge, the ledger is a subscription that gets every record once, in its order.
    """
    read = [Delivery(at, "", each.segment, each.offset, each.key, each.counter) for at, each in enumerate(stored)]
    found = judged(sent, {"ledger": read}, {"ledger"}, complete=True)
    names = {"out of order": "stored out of order"}
    return [Violation(names.get(each.invariant, each.invariant), each.detail) for each in found]


def undelivered(stored: Iterable[StoredRecord], deliveries: Iterable[Delivery]) -> list[Violation]:
    received = {(delivery.segment, delivery.offset) for delivery in deliveries}
    return [
        Violation("not delivered", f"{record.key} #{record.counter} at {record.segment}:{record.offset}")
        for record in stored
        if (record.segment, record.offset) not in received
    ]


def altered(stored: Iterable[StoredRecord], deliveries: Iterable[Delivery]) -> list[Violation]:
    """Return deliveries that differ from the ledger at their segment and offset."""
    stored_at = {(record.segment, record.offset): (record.key, record.counter) for record in stored}
    return [
        Violation("altered", f"{delivery.consumer} received {delivery.key} #{delivery.counter} at {position}")
        for delivery in deliveries
        if stored_at.get(position := (delivery.segment, delivery.offset)) != (delivery.key, delivery.counter)
    ]


def judged(
    sent: Iterable[SentRecord],
    deliveries: Mapping[str, Iterable[Delivery]],
    ordered: Collection[str],
    *,
    complete: bool,
) -> list[Violation]:
    """Return what the independent judge finds in what the programs of one topic saw. It does not know the ledger.

    Args:
        sent: by one producer, in the order in which it sent.
        deliveries: of each subscription.
        ordered: the subscriptions that keep the order of keys.
        complete: every subscription had the time to get everything.
    """
    events: list[Event] = []
    for record in sent:
        about = {"topic": "", "record": f"{record.key} #{record.counter}"}
        outcome = _OUTCOMES.get(record.outcome, "unknown")
        events += (
            {"event": "send", "at": record.sent_ns, "key": record.key, "sender": "producer"} | about,
            {"event": "outcome", "at": record.done_ns, "outcome": outcome} | about,
        )
    events += (
        {
            "event": "delivery",
            "topic": "",
            "at": each.at_ns,
            "subscription": name,
            "record": f"{each.key} #{each.counter}",
            "place": f"{each.segment}:{each.offset}",
            "generation": each.generation,
            "ordered": name in ordered,
        }
        for name, found in deliveries.items()
        for each in found
    )
    return [
        Violation(each.rule, f"{each.subscription}: {each.detail}" if each.subscription else each.detail)
        for each in judge(events, complete=complete)
    ]


def rejected(sent: Iterable[SentRecord]) -> list[Violation]:
    """Return records that a leader refused for good, although they are valid."""
    return [
        Violation("rejected", f"{record.key} #{record.counter} is valid, and was refused for good")
        for record in sent
        if record.outcome == "rejected"
    ]


def repeated(deliveries: Sequence[Delivery]) -> int:
    """Return the number of redeliveries: expected after a crash, never a violation."""
    return len(deliveries) - len({(delivery.segment, delivery.offset) for delivery in deliveries})


@dataclass(frozen=True, slots=True)
class BlockedSegment:
    """A child segment that waited for its ancestors, by the ledger's timestamps."""

    segment: int
    parents: tuple[int, ...]
    blocked_seconds: float
    """From the split or merge to the grant."""
    release_seconds: float | None
    """From the last required acknowledgement of its ancestors to the grant; None if none was required.

    From its split or merge if that came later: its parents had been read to their ends, and no child waited before.
    """


def blocked_segments(chunks: Iterable[Chunk], shard: int, topic: str, subscription: str) -> list[BlockedSegment]:
    """Return every child of a split or merge, and how long ``subscription`` waited for it."""
    state = ShardState(shard)
    completed: dict[int, int] = {}  # segment → time of the last acknowledgement that it needed
    granted: dict[int, int] = {}
    for entry, owner in _entries_of(subscription, topic, chunks, state):
        if isinstance(entry, e.SegmentGranted):
            granted.setdefault(entry.segment, state.at_ms)
        elif isinstance(entry, e.RecordsAcknowledged):
            for part in entry.ranges:
                end = state.topics[topic].layout.segments[part.segment].end_offset
                if end is not None and owner.position(part.segment) >= end:
                    completed.setdefault(part.segment, state.at_ms)
    found = []
    layout = state.topics[topic].layout
    for segment_id, segment in sorted(layout.segments.items()):
        if segment.parents and segment_id in granted:
            waited_for = [completed[parent] for parent in layout.ancestors(segment_id) if parent in completed]
            last = max(waited_for, default=None)
            found.append(
                BlockedSegment(
                    segment_id,
                    segment.parents,
                    (granted[segment_id] - segment.created_at_ms) / 1000,
                    None if last is None else (granted[segment_id] - max(last, segment.created_at_ms)) / 1000,
                )
            )
    return found


def children_before_parents(chunks: Iterable[Chunk], shard: int, topic: str, subscription: str) -> list[Violation]:
    """Return grants of segments that had an ancestor with unacknowledged records."""
    found = []
    for grant, owner, layout in granted_segments(chunks, shard, topic, subscription):
        for ancestor in layout.ancestors(grant.segment):
            end = layout.segments[ancestor].end_offset
            if end is None or owner.position(ancestor) < end:
                detail = f"segment {grant.segment} was granted before its ancestor {ancestor} was drained"
                found.append(Violation("child before parent", detail))
    return found


@dataclass(frozen=True, slots=True)
class Grants:
    """What the ledger says about the grants of one segment to one consumer."""

    count: int
    first_position: int
    """The position that was acknowledged at the first grant. Without a seek, positions only rise."""


def grants(chunks: Iterable[Chunk], shard: int, topic: str, subscription: str) -> dict[tuple[str, int], Grants]:
    """Return (consumer, segment) → its grants, from the ledger."""
    found: dict[tuple[str, int], Grants] = {}
    for grant, owner, _ in granted_segments(chunks, shard, topic, subscription):
        known = found.get((grant.consumer, grant.segment), Grants(0, owner.position(grant.segment)))
        found[grant.consumer, grant.segment] = Grants(known.count + 1, known.first_position)
    return found


def repeated_without_reason(
    deliveries: Iterable[Delivery], granted: Mapping[tuple[str, int], Grants]
) -> list[Violation]:
    """Return deliveries without a grant, below the position of their grant, or more frequent than grants explain."""
    times: Counter[tuple[str, int, int]] = Counter()
    found = []
    for delivery in deliveries:
        consumer = delivery.consumer.partition("#")[0]
        place = f"{delivery.consumer} received {delivery.segment}:{delivery.offset}"
        known = granted.get((consumer, delivery.segment))
        if known is None:
            found.append(Violation("delivered without a grant", f"{place}, and was never granted the segment"))
            continue
        if delivery.offset < known.first_position:
            reason = f"below {known.first_position}, which was acknowledged before the grant"
            found.append(Violation("repeated without reason", f"{place}, {reason}"))
        times[delivery.consumer, delivery.segment, delivery.offset] += 1
        if times[delivery.consumer, delivery.segment, delivery.offset] > known.count:
            found.append(Violation("repeated without reason", f"{place} again, with {known.count} grants"))
    return found


def granted_segments(
    chunks: Iterable[Chunk], shard: int, topic: str, subscription: str
) -> Iterator[tuple[e.SegmentGranted, Subscription, Layout]]:
    """Return each grant of the subscription, with its state and the topic's layout at that moment.

    Both are those of the fold that continues: read them before the next grant.
    """
    state = ShardState(shard)
    for entry, owner in _entries_of(subscription, topic, chunks, state):
        if isinstance(entry, e.SegmentGranted):
            yield entry, owner, state.topics[topic].layout


def _entries_of(
    subscription: str, topic: str, chunks: Iterable[Chunk], state: ShardState
) -> Iterator[tuple[e.AnyEntry, Subscription]]:
    """Apply ``chunks`` to ``state``; return each entry about the subscription when it was applied."""
    for chunk in chunks:
        state.begin_chunk(chunk.header.number, chunk.header.at_ms)
        for entry in chunk.entries:
            state.apply(entry)
            owner = state.subscriptions.get(getattr(entry, "subscription_id", 0))
            if owner is not None and (owner.topic, owner.name) == (topic, subscription):
                yield entry, owner
