"""Explains in sentences why each segment is, or is not, assigned to a consumer. Pure.

1. Each segment gets at least one sentence. It starts with the segment and states the status before the cause.
2. A blocked segment names each blocking ancestor, nearest first, with its backlog, its consumers
   and the time left at the current rate, if that is known.
3. A wait with a deadline states it: a pending revocation, a grace period, the next drain check. If
   drain checks are not answered, the cause comes first.
4. Unknown values are reported as unknown. What depends on the spread of keys over key buckets is called estimated.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headgate.model.layout import BucketRange, SegmentSlice, SegmentState, segment_of
from headgate.model.text import listed
from headgate.model.time_text import duration
from headgate.protocol.backlog import RecordCount
from headgate.views.explanations import BlockingSegment, ConsumerReasons, Explanation, SegmentReasons
from shard.reporting.progress import DrainOutlook, drain_outlook, segment_status, unacknowledged
from shard.state.consumers import RegisteredConsumer
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.steps import Steps, encoding_cost, parts
from shard.subscriptions.deliveries import record_limit
from shard.subscriptions.gate import Gate, is_gated, tracks_acknowledgements
from shard.subscriptions.positions import remaining_at_source
from shard.subscriptions.stalled import Unfinished

CountedBacklogs = Mapping[int, int | None]
"""Segment → its backlog by the tables of an external topic, for those that only their source knows."""
RESUMING_REMEDY: Final = " (its consumer logs key.not_resumed while one cannot be)"
COST_OF_REASONS: Final = 3
"""An explained segment names up to ten ancestors, which takes so many times as long as a description."""
LATE_SECONDS: Final = 5.0
"""A drain check that takes longer is late: one takes a fraction of a second."""


class SegmentHolder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    consumer: str
    segment_slice: SegmentSlice
    waited_seconds: float | None = None
    """Seconds that this leader has waited for its confirmation; None while the grant is valid."""
    revoked_at_ms: int | None = None
    """Ledger time of the revocation, which an earlier leader may have written."""
    next_owner: str | None = None
    """The next owner of a revoked slice, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationContext:
    """The leader's volatile state."""

    now_ms: int
    revoke_timeout_seconds: float
    grace_seconds: float
    held: Mapping[int, Sequence[SegmentHolder]]
    has_drain_checker: bool = True
    """Whether a drain check is configured."""
    next_poll_seconds: float | None = None
    """Seconds until the next drain check: 0 while one is running, None if none is scheduled."""
    check_seconds: float | None = None
    """Seconds for which the running drain check has had no answer; None: none is running."""
    drain_problem: str | None = None
    """Why drain checks are not answered; None: nothing is known to be wrong."""
    delayed: Sequence[str] = ()
    """Why replies to users of its consumers are delayed."""
    unfinished: Mapping[SegmentSlice, Unfinished] = field(default_factory=dict)
    """Slices whose holder has made no progress for more than half of what is allowed."""
    dead_letter_problem: str = ""
    """Why dead letters are not stored; empty: nothing is known to be wrong."""
    contradicted: Mapping[int, str] = field(default_factory=dict)
    """Segment → why the leader does not believe the drain check that calls it drained."""
    rates: Mapping[SegmentSlice, float] = field(default_factory=dict)
    """What one consumer reads → acknowledged records per second, if measured."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """Consumer without a segment → the reason."""
    counted: CountedBacklogs = field(default_factory=dict)


def explain(
    subscription: Subscription,
    topic: TopicView,
    gate: Gate,
    explanation_context: ExplanationContext,
    *,
    segments: Sequence[int],
    consumers: Sequence[str],
) -> Steps[Explanation]:
    yield len(subscription.holdings)
    explainer = _Explainer(subscription, topic, gate, explanation_context)
    explained_segments: list[SegmentReasons] = []
    for cost, some_segments in parts(segments):
        yield cost * COST_OF_REASONS
        explained_segments += map(explainer.segment, some_segments)
    explained_consumers: list[ConsumerReasons] = []
    for cost, names in parts(consumers):
        yield cost
        explained_consumers += (explainer.consumer(subscription.consumers[name]) for name in names)
    yield encoding_cost(segments, consumers)
    return Explanation(
        topic=topic.name,
        subscription=subscription.name,
        summary=tuple(explainer.summary()),
        segments=tuple(explained_segments),
        consumers=tuple(explained_consumers),
    )


def _records(count: RecordCount) -> str:
    text = f"{count.records} unacknowledged record{'' if count.records == 1 else 's'}"
    return f"about {text} (estimated)" if count.estimated else text


def _ended(cause: str) -> str:
    """Return ``cause``, which a program or a person wrote, as the end of a sentence."""
    return cause if cause.endswith((".", "?", "!")) else f"{cause}."


def _segments(labels: Sequence[str]) -> str:
    return f"segment{'s' if len(labels) > 1 else ''} {listed(labels)}"


class _Explainer:
    def __init__(self, subscription: Subscription, topic: TopicView, gate: Gate, context: ExplanationContext) -> None:
        self._subscription = subscription
        self._topic = topic
        self._gate = gate
        self._context = context
        self._held_by: dict[str, list[SegmentHolder]] = {}
        self._incoming: dict[str, list[SegmentHolder]] = {}
        self._ancestors: dict[int, tuple[BlockingSegment, str]] = {}
        """Segment that blocks others → its description and its sentence, which each of them repeats."""
        for _, holders in sorted(context.held.items()):
            for each in holders:
                self._held_by.setdefault(each.consumer, []).append(each)
                if each.next_owner is not None:
                    self._incoming.setdefault(each.next_owner, []).append(each)

    def summary(self) -> list[str]:
        """Describe the subscription as a whole."""
        subscription, gate = self._subscription, self._gate
        kind = "type not yet known" if subscription.type is None else f"type {subscription.type}"
        total = len(self._topic.layout.segments)
        counts = (len(each) for each in (gate.grantable, gate.blocked, gate.retired))
        readable, blocked, drained = (f"{count} {'is' if count == 1 else 'are'}" for count in counts)
        sentences = [
            f"Subscription {subscription.name} of topic {self._topic.name}: {kind}, order {subscription.order}.",
            f"Of {total} segment{'s' * (total != 1)}, {readable} readable, {blocked} blocked and {drained} drained.",
        ]
        if not subscription.consumers:
            idle = "" if self._context.next_poll_seconds is not None else ", and no drain check begins"
            sentences.append(f"No consumer is registered: no segment is read{idle}.")
        if not is_gated(subscription.type, subscription.order):
            sentences.append("Child segments do not wait for their parents in this subscription.")
        elif gate.blocked:
            sentences.append(self._next_check())
        sentences += [f"Replies to its consumers are delayed: {_ended(reason)}" for reason in self._context.delayed]
        if lost := subscription.dropped_records:
            sentences.append(f"Retention deleted {lost} record{'s' * (lost != 1)} that it had not acknowledged.")
        return sentences + self._redelivery()

    def _redelivery(self) -> list[str]:
        """Describe what waits because its delivery has failed, or because its key is parked."""
        redelivery, now_ms = self._subscription.redelivery, self._context.now_ms
        sentences = []
        if keys := redelivery.parked.keys.values():
            records, resuming = sum(each.records for each in keys), len(redelivery.parked.resuming)
            oldest = duration((now_ms - min(each.since_ms for each in keys)) / 1000)
            plurals = "s are" if len(keys) > 1 else " is", "s" * (records != 1)
            fate = f"being resumed: {resuming}{RESUMING_REMEDY if resuming else ''}"
            sentences.append(
                f"{len(keys)} key{plurals[0]} parked, with {records} record{plurals[1]}, "
                f"the oldest for {oldest}; {fate}. Their records go to the dead-letter topic: "
                f"headgate subscription parked {self._topic.name} {self._subscription.name}"
            )
        if failed := redelivery.failed:
            later = sum(each.not_before_ms > now_ms for each in failed)
            reason, _ = Counter(each.reason for each in failed).most_common(1)[0]
            sentences.append(
                f"{len(failed)} record{'s have' if len(failed) > 1 else ' has'} failed and will be delivered again, "
                f"{later} of them later: {_ended(reason or 'no reason given')}"
            )
        limit = record_limit(self._topic)
        if full := [str(each) for each in sorted(redelivery.attempts) if redelivery.records(each) >= limit]:
            sentences.append(
                f"No further record of {_segments(full)} is delivered: {limit} were begun or have failed. "
                "They wait to be acknowledged, or to be stored in a dead-letter topic."
            )
        if dead := len(redelivery.dead):
            cause = self._context.dead_letter_problem or "its consumers have not sent them yet"
            sentences.append(
                f"{dead} record{'s wait' if dead > 1 else ' waits'} for a dead-letter topic: {_ended(cause)}"
            )
        return sentences

    # Segments

    def segment(self, segment: int) -> SegmentReasons:
        held = self._context.held.get(segment, ())
        shared = any(isinstance(each.segment_slice, BucketRange) for each in held)
        status = segment_status(self._subscription, self._gate, segment, shared=shared)
        backlog = self._backlog(segment)
        ancestors = [self._known_ancestor(ancestor) for ancestor in self._gate.blocked.get(segment, ())]
        blocking = [described for described, _ in ancestors]
        if status == "drained":
            sentences = [f"{self._title(segment)} is drained: all its records are acknowledged."]
        elif held:
            sentences = [self._holder(segment, each) for each in held]
        elif status == "blocked":
            sentences = self._blocked(segment, ancestors)
        else:
            sentences = [self._unassigned(segment)]
        waiting = next((each for each in held if each.waited_seconds is not None), None)
        return SegmentReasons(
            segment=segment,
            status=status,
            backlog_records=None if backlog is None else backlog.records,
            estimated=backlog is not None and backlog.estimated,
            sentences=tuple(sentences),
            consumers=tuple(each.consumer for each in held),
            blocked_by=tuple(blocking),
            waiting_for=None if waiting is None else waiting.consumer,
            waiting_seconds=None if waiting is None else self._revoked_seconds(waiting),
            next_poll_seconds=self._context.next_poll_seconds if blocking else None,
        )

    def _title(self, segment: int) -> str:
        known = self._topic.layout.segments[segment]
        return f"Segment {segment} ({known.hash_range if known.label is None else known.label})"

    def _backlog(self, segment_slice: SegmentSlice) -> RecordCount | None:
        known = unacknowledged(self._subscription, self._topic, segment_slice)
        counted = None if known is not None else self._context.counted.get(segment_of(segment_slice))
        return known if counted is None else RecordCount(counted)

    def _remaining(self, segment_slice: SegmentSlice) -> str:
        if not tracks_acknowledgements(self._subscription.type):
            return "headgate does not track its progress"
        backlog = self._backlog(segment_slice)
        if backlog is not None:
            return _records(backlog)
        segment = segment_of(segment_slice)
        return remaining_at_source(self._topic, segment, self._subscription.position(segment))

    def _holder(self, segment: int, held: SegmentHolder) -> str:
        title = self._title(segment)
        if isinstance(held.segment_slice, BucketRange):
            title += f", buckets {held.segment_slice.buckets},"
        name = held.consumer
        if held.waited_seconds is not None:
            move = f"is being released by {name}"
            if held.next_owner is not None:
                move = f"is moving from {name} to {held.next_owner}"
            left = duration(max(0.0, self._context.revoke_timeout_seconds - held.waited_seconds))
            return (
                f"{title} {move}: revoked {duration(self._revoked_seconds(held))} ago, not yet confirmed by {name}, "
                f"which is fenced in {left}."
            )
        grace = self._grace_period(name)
        text = f"{title} is read by {name}{f', which {grace}' if grace else ''}: {self._remaining(held.segment_slice)}."
        return text + self._stalled(held.segment_slice)

    def _stalled(self, segment_slice: SegmentSlice) -> str:
        """Describe a holder without progress; empty: it makes progress."""
        found = self._context.unfinished.get(segment_slice)
        if found is None:
            return ""
        limit, passed = self._subscription.redelivery.policy.max_processing_ms, self._context.now_ms - found.since_ms
        fate = f"after {duration(limit / 1000)} (--max-processing) another consumer gets the segment, if one can"
        return (
            f" {found.consumer} has acknowledged nothing for {duration(passed / 1000)}, and is at offset "
            f"{found.offset}: {fate}."
        )

    def _revoked_seconds(self, held: SegmentHolder) -> float:
        assert held.revoked_at_ms is not None, f"{held.segment_slice} was not revoked"
        return max(0, self._context.now_ms - held.revoked_at_ms) / 1000

    def _grace_period(self, name: str) -> str | None:
        """Describe the running grace period of a disconnected consumer."""
        consumer = self._subscription.consumers.get(name)
        if consumer is None or consumer.disconnected_at_ms is None:
            return None
        disconnected = max(0, self._context.now_ms - consumer.disconnected_at_ms) / 1000
        left, passed = duration(max(0.0, self._context.grace_seconds - disconnected)), duration(disconnected)
        return f"has been disconnected for {passed} and is removed in {left} unless it returns"

    def _unassigned(self, segment: int) -> str:
        reason = "will be assigned at the next reconciliation" if self._subscription.consumers else "has no consumer"
        return f"{self._title(segment)} is readable and {reason}: {self._remaining(segment)}."

    # Blocking ancestors

    def _blocked(self, segment: int, blocking: Sequence[tuple[BlockingSegment, str]]) -> list[str]:
        names = listed([each.segment for each, _ in blocking])
        ancestors = f"segments {names} are" if len(blocking) > 1 else f"segment {names} is"
        sentences = [f"{self._title(segment)} is blocked until {ancestors} drained."]
        sentences += [sentence for _, sentence in blocking]
        if all(each.state == "sealed" and each.backlog_records == 0 for each, _ in blocking):
            sentences.append(self._next_check())
        return sentences

    def _known_ancestor(self, segment: int) -> tuple[BlockingSegment, str]:
        known = self._ancestors.get(segment)
        if known is None:
            outlook = drain_outlook(
                self._subscription, self._topic, segment, self._context.rates, self._context.counted
            )
            described = self._blocking_ancestor(segment, outlook)
            known = self._ancestors[segment] = described, self._ancestor(described, outlook)
        return known

    def _blocking_ancestor(self, segment: int, outlook: DrainOutlook) -> BlockingSegment:
        backlog = self._backlog(segment)
        return BlockingSegment(
            segment=segment,
            state=self._topic.layout.segments[segment].state,
            backlog_records=None if backlog is None else backlog.records,
            estimated=backlog is not None and backlog.estimated,
            records_per_second=outlook.records_per_second,
            expected_seconds=outlook.expected_seconds,
            consumers=tuple(each.consumer for each in self._context.held.get(segment, ())),
        )

    def _ancestor(self, ancestor: BlockingSegment, outlook: DrainOutlook) -> str:
        text = self._undrained(ancestor, outlook)
        if reason := self._context.contradicted.get(ancestor.segment):
            check = "Check which ledger the Spark process counts (headgate doctor)."
            text += f" This leader does not believe the drain check: {reason}. {check}"
        return text

    def _undrained(self, ancestor: BlockingSegment, outlook: DrainOutlook) -> str:
        title = self._title(ancestor.segment)
        if ancestor.state == SegmentState.ACTIVE:
            return f"{title} is active: it still receives records and cannot be drained yet."
        if ancestor.backlog_records == 0:
            return f"{title} is acknowledged to its end; a drain check has to confirm that."
        reader = f"read by {' and '.join(ancestor.consumers)}" if ancestor.consumers else "not read by any consumer"
        if ancestor.segment in self._gate.blocked:
            reader = "itself blocked"
        left = "time left unknown"
        if ancestor.expected_seconds is not None:
            rate = self._context.rates[outlook.slowest]
            left = f"about {duration(ancestor.expected_seconds)} left at {rate:.1f} records/s"
            if isinstance(outlook.slowest, BucketRange):
                left += f" of {self._subscription.holdings[outlook.slowest].consumer}, the last to finish"
        verb = "is" if ancestor.backlog_records is None else "has"
        return f"{title} {verb} {self._remaining(ancestor.segment)} and is {reader}: {left}."

    def _next_check(self) -> str:
        if not self._context.has_drain_checker:
            return "No drain check is configured: blocked segments stay blocked."
        if self._context.next_poll_seconds is None:
            return "No drain check is scheduled."
        next_check = "A drain check is running."
        if (waited := self._context.check_seconds or 0.0) >= LATE_SECONDS:
            next_check = f"A drain check has been running for {duration(waited)}: no answer from Spark yet."
        if self._context.next_poll_seconds:
            wait = duration(self._context.next_poll_seconds)
            next_check = f"The next drain check runs in {wait}; progress brings it forward."
        if self._context.drain_problem is None:
            return next_check
        return f"Drain checks are not answered: {_ended(self._context.drain_problem)} {next_check}"

    # Consumers

    def consumer(self, consumer: RegisteredConsumer) -> ConsumerReasons:
        name = consumer.consumer
        own = self._held_by.get(name, [])
        reads = [str(each.segment_slice) for each in own if each.waited_seconds is None]
        revoked = [str(each.segment_slice) for each in own if each.waited_seconds is not None]
        incoming = [f"{each.segment_slice} from {each.consumer}" for each in self._incoming.get(name, [])]
        sentences = []
        if reads:
            sentences.append(f"{name} reads {_segments(reads)}.")
        if revoked:
            sentences.append(f"{name} has not yet confirmed the revocation of {_segments(revoked)}.")
        if not own:
            sentences.append(f"{name} has no segment: {self._context.idle[name]}.")
        if incoming:
            sentences.append(f"{name} will get {_segments(incoming)}.")
        if grace := self._grace_period(name):
            sentences.append(f"{name} {grace}.")
        return ConsumerReasons(
            consumer=name,
            connected=consumer.disconnected_at_ms is None,
            segments=tuple(sorted({segment_of(each.segment_slice) for each in own})),
            sentences=tuple(sentences),
        )
