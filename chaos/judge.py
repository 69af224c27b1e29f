"""Judge a run from what producers and consumers wrote, and from the ledger. Pure.

Nothing that a daemon reports is used. The rules:

1. A record whose delivery succeeded is in the ledger; one that failed for certain is not.
2. A record is in the ledger once, and the records of a key are in the order in which they were sent.
3. Each consumer's delivery is what the ledger has at that place, and each subscription gets every record.
4. headgate.client_history.judge finds nothing in what the programs saw: STREAM keeps the order of keys, and more.
5. STREAM: a segment is granted after every ancestor is acknowledged to its end.
6. A record is delivered again only for a reason: within one run of a consumer at most once for each grant of its
   segment, and never below the position that was acknowledged when the segment was granted.
7. A cluster that lost a server which it needs for elections or counts only, or one chunk of another shard, continues.
8. After each fault, every topic accepts records again.

demo.checks contains rules 1 to 5 as far as a demonstration needs them. A program that ended on its own is a
violation, too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.timeline import FaultWindow
from demo import checks
from demo.checks import Delivery, SentRecord, StoredRecord, Violation
from headgate.ledger.chunk import Chunk
from headgate.model import entries as e


@dataclass(frozen=True, slots=True)
class SubscriptionEvidence:
    """What the consumers of one subscription received."""

    name: str
    kind: e.SubscriptionType
    deliveries: Sequence[Delivery]
    """``consumer`` is the name of the consumer and the number of its run: ``billing-1#2``."""


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
class RunEvidence:
    """Everything about a run."""

    topics: Sequence[TopicEvidence]
    faults: Sequence[FaultWindow] = ()
    ended_programs: Sequence[str] = ()
    """Producers and consumers that ended without being asked to, each with the reason."""
    notes: Sequence[Violation] = field(default=())
    """What was found while the run was in progress, such as a server that did not come back."""


def judge(run: RunEvidence) -> list[Violation]:
    """Return every violation, by topic."""
    found = [*run.notes, *(Violation("program ended", reason) for reason in run.ended_programs)]
    for topic in run.topics:
        found += [
            Violation(violation.invariant, f"{topic.topic}: {violation.detail}") for violation in judge_topic(topic)
        ]
    return [*found, *stopped(run), *not_recovered(run)]


def judge_topic(topic: TopicEvidence) -> list[Violation]:
    """Return what is wrong with one topic."""
    found = [
        *checks.judged_ledger(topic.sent, topic.stored),
        *rejected(topic.sent),
        *checks.judged(
            topic.sent,
            {each.name: each.deliveries for each in topic.subscriptions},
            {each.name for each in topic.subscriptions if each.kind == e.SubscriptionType.STREAM},
            complete=True,
        ),
    ]
    for subscription in topic.subscriptions:
        found += [
            Violation(violation.invariant, f"{subscription.name}: {violation.detail}")
            for violation in judge_subscription(topic, subscription)
        ]
    return found


def judge_subscription(topic: TopicEvidence, subscription: SubscriptionEvidence) -> list[Violation]:
    """Return what is wrong with the deliveries to one subscription."""
    deliveries = subscription.deliveries
    found = [
        *checks.undelivered(topic.stored, deliveries),
        *checks.altered(topic.stored, deliveries),
        *repeated_without_reason(deliveries, grants(topic.chunks, topic.shard, topic.topic, subscription.name)),
    ]
    if subscription.kind == e.SubscriptionType.STREAM:
        found += checks.children_before_parents(topic.chunks, topic.shard, topic.topic, subscription.name)
    return found


def rejected(sent: Iterable[SentRecord]) -> list[Violation]:
    """Return records that a leader refused for good, although they are valid."""
    return [
        Violation("rejected", f"{record.key} #{record.counter} is valid, and was refused for good")
        for record in sent
        if record.outcome == "rejected"
    ]


@dataclass(frozen=True, slots=True)
class Grants:
    """What the ledger says about the grants of one segment to one consumer."""

    count: int
    first_position: int
    """The position that was acknowledged at the first grant. Without a seek, positions only rise."""


def grants(chunks: Iterable[Chunk], shard: int, topic: str, subscription: str) -> dict[tuple[str, int], Grants]:
    """Return (consumer, segment) → its grants, from the ledger."""
    found: dict[tuple[str, int], Grants] = {}
    for grant, owner, _ in checks.granted_segments(chunks, shard, topic, subscription):
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


def stopped(run: RunEvidence) -> list[Violation]:
    """Return faults during which a topic that should have continued accepted nothing."""
    return [
        Violation("stopped", f"{topic.topic} accepted nothing during {fault.name}, which does not concern it")
        for fault in run.faults
        for topic in run.topics
        if topic.topic in fault.continuing
        and not any(
            record.outcome == "committed" and fault.began_ns <= record.done_ns <= fault.ended_ns
            for record in topic.sent
        )
    ]


def not_recovered(run: RunEvidence) -> list[Violation]:
    """Return topics that accepted nothing after a fault had ended."""
    newest = {
        topic.topic: max((record.done_ns for record in topic.sent if record.outcome == "committed"), default=0)
        for topic in run.topics
    }
    return [
        Violation("not recovered", f"{topic} accepted nothing after the end of {fault.name}")
        for fault in run.faults
        for topic, done_ns in newest.items()
        if done_ns <= fault.ended_ns
    ]
