"""Measures the topics of one shard, and carries out what `controller.scaling.policy` decides.

A change is one entry, as for a command. Except for the sample of key hashes, all measurements come
from the ledger and survive a change of leader.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from controller.context.leader_context import LeaderContext
from controller.scaling import policy
from controller.settings.sections import ScalingSettings
from headgate.ledger.chunk import RecordColumns
from headgate.model import entries as e
from metrics import events
from metrics.label_values import LayoutChangeKind, LayoutChangeReason
from shard.access.quotas import judge_entries
from shard.requests import topic_commands as commands
from shard.state.ledger_time import TOLERATED_STEP_MS
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from shard.subscriptions.refusal import Refusal

EVALUATION_INTERVAL_SECONDS = 5.0
"""Half of the shortest window."""
SAMPLE_INTERVAL_SECONDS = 0.5
"""Pause between two sampled chunks, so that the samples cover a whole window."""

log = structlog.get_logger(__name__)


class Autoscaler:
    def __init__(
        self, context: LeaderContext, state: ShardState, apply_entries: Callable[[Sequence[e.AnyEntry]], None]
    ) -> None:
        """``apply_entries`` applies entries, adds them to the next chunk and updates the subscriptions."""
        self.settings = context.scaling
        """Can be replaced at any time."""
        self._context = context
        self._state = state
        self._apply_entries = apply_entries
        self._sampler = policy.HotKeySampler()
        self._sampled_at = self._evaluated_at = asyncio.get_running_loop().time()
        self._measured_since_ms = state.terms.started_at_ms
        """Ledger time: the start of the term, or the last step."""
        self._offset_ms = self._now_ms() - 1000 * self._sampled_at
        self._reported: set[tuple[int, int, str]] = set()
        """(topic id, segment, limit) that were logged."""

    def sample(self, records: RecordColumns) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._sampled_at >= SAMPLE_INTERVAL_SECONDS:
            self._sampled_at = now
            self._sampler.sample(records)

    def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._evaluated_at < EVALUATION_INTERVAL_SECONDS:
            return
        self._evaluated_at = now
        self._forget_sealed()
        now_ms = self._now_ms()
        # A step leaves slots without records. While ledger time waits for the clock, all records have one slot.
        if abs(now_ms - 1000 * now - self._offset_ms) > TOLERATED_STEP_MS:
            self._offset_ms, self._measured_since_ms = now_ms - 1000 * now, now_ms
        for topic in list(self._state.topics.values()):
            settings = policy.effective_settings(self.settings, topic.policy, topic.first_segments)
            # The source of an external topic splits and merges its segments.
            if topic.external is None and (settings.split or settings.merge):
                self._execute(topic, policy.decide(self._load(topic, settings, now_ms), settings, now_ms))

    def _now_ms(self) -> int:
        """Return ledger time, which never decreases, even if this clock is behind that of the previous leader."""
        return max(self._context.now_ms(), self._state.at_ms)

    def _load(self, topic: Topic, settings: ScalingSettings, now_ms: int) -> policy.TopicLoad:
        split_ms, merge_ms = int(settings.split_window_seconds * 1000), int(settings.merge_window_seconds * 1000)
        subscriptions = topic.subscriptions.values()
        waiting = policy.undrained_generations(topic.layout, subscriptions)
        connected = ([x for x in each.consumers.values() if x.disconnected_at_ms is None] for each in subscriptions)
        return policy.TopicLoad(
            layout=topic.layout,
            segments={
                segment.segment_id: policy.SegmentLoad(
                    rate=(tail := topic.tails[segment.segment_id]).traffic.rate(now_ms, split_ms),
                    peak=tail.traffic.peak(now_ms, split_ms, merge_ms),
                    hottest_hash_fraction=self._sampler.hottest_hash_fraction(topic.topic_id, segment.segment_id),
                    undrained_generations=waiting[segment.segment_id],
                )
                for segment in topic.layout.active()
            },
            consumers=max(map(len, connected), default=0),
            measured_since_ms=self._measured_since_ms,
        )

    def _execute(self, topic: Topic, plan: policy.ScalingDecision) -> None:
        for suppressed in plan.suppressed:
            self._report_suppressed(topic, suppressed)
        match plan.change:
            case policy.Split(segment, why, detail):
                entry = commands.split_entry(topic, segment, token="", reason=detail)
                self._change(topic, "split", why, detail, entry)
            case policy.Merge(first, second, why, detail):
                merged = commands.merge_entry(topic, first, second, token="", reason=detail)
                self._change(topic, "merge", why, detail, merged)

    def _change(
        self,
        topic: Topic,
        kind: LayoutChangeKind,
        why: LayoutChangeReason,
        detail: str,
        entry: e.SegmentSplit | e.SegmentsMerged | Refusal,
    ) -> None:
        if isinstance(entry, Refusal):
            # The only refusal of `topic_commands` is a full layout, sealed segments included. Pruning frees capacity.
            self._report_suppressed(topic, policy.SuppressedSplit(-1, "layout_full", f"{detail}, but {entry.reason}"))
            return
        over = judge_entries((entry,), self._state, self._context.access.rules.limits_of)
        if over is not None:
            self._report_suppressed(topic, policy.SuppressedSplit(-1, "quota", f"{detail}, but {over.reason}"))
            return
        self._apply_entries((entry,))
        self._context.observer.observe(events.LayoutChanged(kind=kind, reason=why))
        log.info("topic.scaled", shard=self._state.shard, topic=topic.name, kind=kind, reason=why, detail=detail)

    def _report_suppressed(self, topic: Topic, suppressed: policy.SuppressedSplit) -> None:
        """Log a suppressed split, once per segment and limit."""
        key = (topic.topic_id, suppressed.segment, suppressed.limit)
        if key not in self._reported:
            self._reported.add(key)
            self._context.observer.observe(events.SplitSuppressed(limit=suppressed.limit))
            log.warning(
                "segment.split_suppressed",
                shard=self._state.shard,
                topic=topic.name,
                limit=suppressed.limit,
                detail=suppressed.detail,
            )

    def _forget_sealed(self) -> None:
        topics = self._state.topics.values()
        segments = [(topic.topic_id, segment) for topic in topics for segment in topic.layout.active()]
        for topic_id, segment in segments:
            if segment.rolled_since_ms is not None:
                self._sampler.roll(topic_id, segment.parents, segment.segment_id)
        self._sampler.retain(active := {(topic_id, segment.segment_id) for topic_id, segment in segments})
        self._reported = {
            (topic_id, at, limit)
            for topic_id, at, limit in self._reported
            if (topic_id, at) in active or (at == -1 and topic_id in self._state.topics_by_id)
        }
