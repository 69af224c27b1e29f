"""Check headgate's guarantees from the outside. Pure.

The input is the outcomes at the producer, the ledger and the deliveries to consumers; the output is a list
of violations. Nothing that a daemon reports is used. The counter of each key rises by one, so loss, duplication and
reordering are visible without knowledge of segments.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headgate.client_history.judge import Event, judge
from headgate.ledger.chunk import Chunk
from headgate.model import entries as e
from headgate.model.layout import Layout
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription

_OUTCOMES = {"committed": "stored", "failed": "not stored", "rejected": "not stored"}


@dataclass(frozen=True, slots=True)
class SentRecord:
    """One record of a producer, with its outcome."""

    key: str
    counter: int
    sent_ns: int
    done_ns: int
    outcome: str
    """``committed``, ``failed``: certainly not stored, ``unknown``, or ``rejected``: refused for good."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record of the ledger."""

    segment: int
    offset: int
    key: str
    counter: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record that reached a consumer. All processes of the machine share the clock."""

    at_ns: int
    consumer: str
    segment: int
    offset: int
    key: str
    counter: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a guarantee, with an example."""

    invariant: str
    detail: str


def judged_ledger(sent: Iterable[SentRecord], stored: Iterable[StoredRecord]) -> list[Violation]:
    """Return what is lost, stored twice or out of order, or stored although its producer learned that it is not.

    For the independent judge, the ledger is a subscription that gets every record once, in its order.
    """
    read = [Delivery(at, "", each.segment, each.offset, each.key, each.counter) for at, each in enumerate(stored)]
    found = judged(sent, {"ledger": read}, {"ledger"}, complete=True)
    names = {"out of order": "stored out of order"}
    return [Violation(names.get(each.invariant, each.invariant), each.detail) for each in found]


def undelivered(stored: Iterable[StoredRecord], deliveries: Iterable[Delivery]) -> list[Violation]:
    """Return records of the ledger that no consumer of the subscription received."""
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
