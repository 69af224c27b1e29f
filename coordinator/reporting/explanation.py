"""Say in sentences why a segment is, or is not, with a consumer. Values in, sentences out; nothing is decided here.

Gate, target and handover have decided already; this module reads what they left and what the leader knows beside it:
who is waited for and for how long, when the next drain poll is, how quickly a segment's backlog shrinks.

The rules:

1. Every segment gets at least one sentence, which begins with the segment and says what is the case before why.
2. A blocked segment names each ancestor that blocks it, nearest first: what is left to acknowledge there, who reads it,
   and how long that will take at the present rate, if there is one.
3. A wait that ends by itself says when: a revocation that times out, a grace period that ends, the next drain poll.
4. What is not known is said to be unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.decisions.external_topics import remaining_description
from coordinator.decisions.gate import Gate, is_gated, tracks_acknowledgements
from coordinator.state.subscription import RegisteredConsumer, Subscription
from coordinator.state.topic_view import TopicView
from headgate.model.layout import SegmentState
from headgate.protocol import messages as m
from headgate.protocol.backlog import estimate_drain


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHolder:
    """One consumer's hold on a segment."""

    consumer: str
    buckets: str = ""
    """Which key buckets, as people read it; empty: all of them."""
    waited_seconds: float | None = None
    """How long its confirmation has been waited for; None while the grant stands."""
    next_owner: str | None = None
    """Who gets it next, where it is being given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationContext:
    """What the leader knows beside the ledger."""

    now_ms: int
    revoke_timeout_seconds: float
    grace_seconds: float
    held: Mapping[int, Sequence[SegmentHolder]]
    """Segment → who holds it."""
    has_drain_checker: bool = True
    """Whether somebody can be asked what is drained."""
    next_poll_seconds: float | None = None
    """Until the next drain poll: 0 while one is under way, None where none is planned."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Segment → records acknowledged a second, where it was measured."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """Consumer that holds nothing → why."""


def explain(
    subscription: Subscription,
    topic: TopicView,
    gate: Gate,
    explanation_context: ExplanationContext,
    *,
    segments: Sequence[int],
    consumers: Sequence[str],
) -> m.SubscriptionExplanation:
    """Explain ``segments`` and ``consumers``, which exist."""
    explainer = _Explainer(subscription, topic, gate, explanation_context)
    return m.SubscriptionExplanation(
        topic=topic.name,
        subscription=subscription.name,
        summary=explainer.summary(),
        segments=[explainer.segment(segment) for segment in segments],
        consumers=[explainer.consumer(subscription.consumers[name]) for name in consumers],
    )


def duration(seconds: float) -> str:
    """Return ``seconds`` as people say it: ``0.4 s``, ``12 s``, ``3 min``, ``2 h``."""
    if seconds < 1:
        return f"{max(seconds, 0):.1f} s"
    for unit, length, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _record_count(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _slice_label(segment: int, held: SegmentHolder) -> str:
    return f"{segment}[{held.buckets}]" if held.buckets else str(segment)


class _Explainer:
    def __init__(self, subscription: Subscription, topic: TopicView, gate: Gate, context: ExplanationContext) -> None:
        self._subscription = subscription
        self._topic = topic
        self._gate = gate
        self._context = context

    def summary(self) -> list[str]:
        """Return what is true of the whole subscription."""
        subscription, gate = self._subscription, self._gate
        kind = "of a type that is not on record yet" if subscription.type is None else subscription.type
        what = f"{subscription.name} of {self._topic.name} is {kind}, order {subscription.order}"
        share = f"{len(gate.grantable)} of {len(self._topic.layout.segments)} segments may be read"
        sentences = [f"{what}: {share}, {len(gate.blocked)} wait for ancestors, {len(gate.retired)} are drained."]
        if not subscription.consumers:
            sentences.append("No consumer is registered, so nobody reads anything and no drain is asked about.")
        if not is_gated(subscription.type, subscription.order):
            sentences.append("Children do not wait for their ancestors here.")
        elif gate.blocked:
            sentences.append(self._next_poll_sentence())
        return sentences

    # --- segments -----------------------------------------------------------------------------------------------------

    def segment(self, segment: int) -> m.SegmentExplanation:
        """Explain one segment."""
        held = self._context.held.get(segment, ())
        blocking = [self._blocking_ancestor(ancestor) for ancestor in self._gate.blocked.get(segment, ())]
        if segment in self._gate.retired:
            status, sentences = (
                "drained",
                [self._segment_title(segment) + " is drained: nobody needs to read it again."],
            )
        elif any(each.waited_seconds is not None for each in held):
            status, sentences = "revoking", [self._holder_sentence(segment, each) for each in held]
        elif held:
            status, sentences = "granted", [self._holder_sentence(segment, each) for each in held]
        elif segment in self._gate.blocked:
            status, sentences = "blocked", self._blocked_sentences(segment, blocking)
        else:
            status, sentences = "waiting", [self._unassigned_sentence(segment)]
        waiting = next((each for each in held if each.waited_seconds is not None), None)
        return m.SegmentExplanation(
            segment=segment,
            status=status,
            # A number only where it is one: of an external topic the source alone may know.
            backlog_records=None if self._remaining_at_source(segment) else self._backlog(segment),
            sentences=sentences,
            consumers=[each.consumer for each in held],
            blocked_by=blocking,
            waiting_for=None if waiting is None else waiting.consumer,
            waiting_seconds=None if waiting is None else waiting.waited_seconds,
            next_poll_seconds=self._context.next_poll_seconds if blocking else None,
        )

    def _segment_title(self, segment: int) -> str:
        known = self._topic.layout.segments[segment]
        return f"Segment {segment} ({known.hash_range if known.label is None else known.label})"

    def _backlog(self, segment: int) -> int | None:
        """Return how much is not acknowledged; None where nothing is."""
        if not tracks_acknowledgements(self._subscription.type):
            return None
        return self._subscription.unacknowledged_records(segment, self._topic.tails[segment].next_offset)

    def _remaining_at_source(self, segment: int) -> str | None:
        """Return in words what is left of a segment that cannot be counted here; None where it can."""
        return remaining_description(self._topic, segment, self._subscription.position(segment))

    def _remaining_text(self, segment: int) -> str:
        left = self._backlog(segment)
        if left is not None and (remaining := self._remaining_at_source(segment)):
            return remaining
        return "what it has read is not tracked" if left is None else f"{_record_count(left)} not acknowledged"

    def _holder_sentence(self, segment: int, held: SegmentHolder) -> str:
        part = f"{self._segment_title(segment)}{f', buckets {held.buckets},' if held.buckets else ''}"
        if held.waited_seconds is not None:
            next_owner = "nobody yet" if held.next_owner is None else held.next_owner
            left = duration(max(0.0, self._context.revoke_timeout_seconds - held.waited_seconds))
            return (
                f"{part} is on its way from {held.consumer} to {next_owner}: {held.consumer} was told to finish "
                f"{duration(held.waited_seconds)} ago and has not confirmed; in {left} it is fenced."
            )
        rest = self._remaining_text(segment)
        return f"{part} is read by {held.consumer}{self._grace_period_clause(held.consumer)}: {rest}."

    def _grace_period_clause(self, name: str) -> str:
        consumer = self._subscription.consumers.get(name)
        if consumer is None or consumer.disconnected_at_ms is None:
            return ""
        silent = max(0, self._context.now_ms - consumer.disconnected_at_ms) / 1000
        left = duration(max(0.0, self._context.grace_seconds - silent))
        return f", which has been silent for {duration(silent)} and keeps it for another {left}"

    def _unassigned_sentence(self, segment: int) -> str:
        if not self._subscription.consumers:
            missing = "no consumer is registered"
            return f"{self._segment_title(segment)} may be read, and {missing}: {self._remaining_text(segment)}."
        next_step = "goes to a consumer at the next reconciliation"
        return f"{self._segment_title(segment)} may be read, and {next_step}: {self._remaining_text(segment)}."

    # --- what blocks --------------------------------------------------------------------------------------------------

    def _blocked_sentences(self, segment: int, blocking: Sequence[m.BlockingAncestor]) -> list[str]:
        names = ", ".join(str(each.segment) for each in blocking)
        plural = "s" if len(blocking) > 1 else ""
        first = (
            f"{self._segment_title(segment)} waits until segment{plural} {names} {'are' if plural else 'is'} drained."
        )
        sentences = [first, *(self._ancestor_sentence(each) for each in blocking)]
        if all(each.state == "sealed" and each.backlog_records == 0 for each in blocking):
            sentences.append(self._next_poll_sentence())
        return sentences

    def _blocking_ancestor(self, segment: int) -> m.BlockingAncestor:
        backlog = self._backlog(segment) or 0
        rate = self._context.rates.get(segment)
        return m.BlockingAncestor(
            segment=segment,
            state=str(self._topic.layout.segments[segment].state),
            backlog_records=backlog,
            records_per_second=rate,
            expected_seconds=estimate_drain(backlog, 0.0, rate, tracked=True)[1],
            consumers=[each.consumer for each in self._context.held.get(segment, ())],
        )

    def _ancestor_sentence(self, ancestor: m.BlockingAncestor) -> str:
        name = self._segment_title(ancestor.segment)
        if ancestor.state == SegmentState.ACTIVE:
            return f"{name} still takes records, so it cannot be drained yet."
        if not ancestor.backlog_records:
            return f"{name} is acknowledged to its end; that has to be counted before it is on record."
        who = f"read by {' and '.join(ancestor.consumers)}" if ancestor.consumers else "read by nobody"
        if ancestor.segment in self._gate.blocked:
            who = "blocked itself"
        if ancestor.expected_seconds is None:
            when = "how long that takes is not known"
        else:
            assert ancestor.records_per_second is not None
            when = f"about {duration(ancestor.expected_seconds)} at {ancestor.records_per_second:.1f} records/s"
        if remaining := self._remaining_at_source(ancestor.segment):
            return f"{name} is {remaining} and is {who}: {when}."
        return f"{name} has {_record_count(ancestor.backlog_records)} not acknowledged and is {who}: {when}."

    def _next_poll_sentence(self) -> str:
        if not self._context.has_drain_checker:
            return "No drain checker is configured: nothing is ever counted, so children wait for ever."
        if self._context.next_poll_seconds is None:
            return "No drain poll is planned."
        if not self._context.next_poll_seconds:
            return "A drain poll is under way."
        return f"The next drain poll is in {duration(self._context.next_poll_seconds)}; progress brings it forward."

    # --- consumers ----------------------------------------------------------------------------------------------------

    def consumer(self, consumer: RegisteredConsumer) -> m.ConsumerExplanation:
        """Explain one consumer."""
        name = consumer.consumer
        held_here = [
            (segment, each)
            for segment, holders in sorted(self._context.held.items())
            for each in holders
            if each.consumer == name
        ]
        reads = [_slice_label(segment, each) for segment, each in held_here if each.waited_seconds is None]
        finishing = [_slice_label(segment, each) for segment, each in held_here if each.waited_seconds is not None]
        sentences = []
        if reads:
            sentences.append(f"{name} reads segment{'s' if len(reads) > 1 else ''} {', '.join(reads)}.")
        if finishing:
            sentences.append(f"{name} was told to finish with {', '.join(finishing)}, and has not confirmed.")
        if not held_here:
            sentences.append(f"{name} holds nothing: {self._context.idle.get(name, self._idle_reason())}.")
        incoming = [
            f"{_slice_label(segment, each)} from {each.consumer}"
            for segment, holders in sorted(self._context.held.items())
            for each in holders
            if each.next_owner == name
        ]
        if incoming:
            sentences.append(f"{name} will get {', '.join(incoming)}.")
        silence = self._grace_period_clause(name)
        if silence:
            sentences.append(f"{name}{silence}.")
        return m.ConsumerExplanation(
            consumer=name,
            connected=consumer.disconnected_at_ms is None,
            segments=sorted({segment for segment, _ in held_here}),
            sentences=sentences,
        )

    def _idle_reason(self) -> str:
        grantable, blocked = len(self._gate.grantable), len(self._gate.blocked)
        others = f"; {blocked} more wait for their ancestors" if blocked else ""
        return f"there are {grantable} segments to read and {len(self._subscription.consumers)} consumers{others}"
