"""Rolls and prunes segments periodically, prunes them on command, and deletes their data.

`SegmentsPruned` removes segments from the layout and leaves tombstones, as does the deletion of a topic. After a delay,
when no reader can still be reading them, their data is deleted from compacted objects, and `DataDeleted` removes the
tombstones. Deletions are repeated until they succeed. That of a deleted topic waits until its session for devices is
removed: a next leader learns of it by the tombstones. Compaction drops the data of chunks that it has not compacted
yet. Segments of external topics leave no tombstones.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.retention import policy
from controller.settings.sections import RetentionSettings
from controller.snapshots.restore import require_complete, require_own
from headgate.backoff import Backoff, BackoffSchedule
from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.model import entries as e
from headgate.protocol.replies import PruneReply
from headgate.protocol.requests import PruneTopic
from headgate.views.topics import PruneResult, UnprunedSegment
from metrics import events
from shard.requests.handlers import Answer, Decision, Registration, StepResult, Stepwise, find_topic, handler
from shard.requests.topic_commands import MAX_SEGMENTS, no_change, roll_entry
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from shard.steps import Steps, TakeSteps
from shard.subscriptions.refusal import Refusal

DELETE_TIMEOUT_SECONDS = 60.0
"""Longest wait for one deletion."""
DELETION_BACKOFF = Backoff(first_seconds=5.0, longest_seconds=300.0)

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class Pruner:
    """Prunes the topics of one shard during one term."""

    context: LeaderContext
    state: ShardState
    commit: GroupCommit
    _: KW_ONLY
    apply_entries: Callable[[Sequence[e.AnyEntry]], None]
    """Applies entries, adds them to the next chunk and updates the subscriptions."""
    take_steps: TakeSteps
    has_session: Callable[[int], bool]
    """Whether the broker may have a session of the topic with this id."""
    withdraw: Callable[[Topic, Iterable[int]], set[int]]
    """Lets consumers give back the segments that are to be pruned; returns those that are still held."""
    settings: RetentionSettings = field(init=False)
    """Can be replaced at any time."""

    def __post_init__(self) -> None:
        self.settings = self.context.retention

    async def run(self) -> None:
        schedule = BackoffSchedule(DELETION_BACKOFF, self.context.rng.random)
        retry_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.context.prune_interval_seconds)
            await self.take_steps(self._prune())
            self._count_tombstones()
            if loop.time() < retry_at:
                continue
            if await self._delete():
                schedule.reset()
            else:
                self.context.observer.observe(events.DataDeletionFailed())
                retry_at = loop.time() + schedule.next_seconds()

    def handlers(self) -> tuple[Registration, ...]:
        return (handler(PruneTopic, lambda request, _: Stepwise(self.prune_topic(request))),)

    def prune_topic(self, request: PruneTopic) -> Steps[StepResult]:
        """Prune one topic now, regardless of its retention time, or return what would be pruned."""
        topic = find_topic(request.topic, self.state)
        rules = replace(policy.rules_for(e.TopicPolicy(max_age_ms=0), self.settings), ignored="none")
        pruning = yield from self._decide(topic.topic_id, lambda _: rules)
        if pruning is None:
            return Refusal("unavailable", f"topic {request.topic!r} was deleted at the same time: ask again")
        if request.token in self.state.commands:
            return Decision((), _answer(pruning, self._segments_pruned_by(topic, request.token)))
        if request.dry_run:
            return Decision((), _answer(pruning, pruning.segments))
        if request.shown is not None and (more := sorted({*pruning.segments}.difference(request.shown))):
            return Refusal("invalid", f"segments that were not shown can be pruned by now, {more[0]} first: look again")
        entry = self._entry(topic, pruning.segments, request.token) if pruning.segments else None
        return Decision((entry or no_change(topic, request.token),), _answer(pruning, pruning.segments))

    def _prune(self) -> Steps[None]:
        """Prune every topic. Each is decided for itself."""
        for topic in list(self.state.topics.values()):
            yield 1 + 2 * len(topic.subscriptions)
            if self._rules(topic).keeps_everything:
                self.withdraw(topic, ())
                continue
            if topic.external is None:
                yield len(topic.layout.segments)
                self._roll(topic.topic_id)
            pruning = yield from self._decide(topic.topic_id, self._rules)
            if pruning is not None and (segments := self._given_back(topic, pruning.segments)):
                self.apply_entries((self._entry(topic, segments),))

    def _given_back(self, topic: Topic, segments: Sequence[int]) -> list[int]:
        """Return those of ``segments``, ancestors first, that no consumer has to give back before, nor an ancestor."""
        kept = self.withdraw(topic, segments)
        for segment in segments:
            if not kept.isdisjoint(topic.layout.segments[segment].parents):
                kept.add(segment)
        return [segment for segment in segments if segment not in kept]

    def _rules(self, topic: Topic) -> policy.RetentionRules:
        return policy.rules_for(topic.policy, self.settings)

    def _roll(self, topic_id: int) -> None:
        topic = self.state.topics_by_id.get(topic_id)
        if topic is None:
            return
        for roll in policy.decide_rolls(topic.layout, topic.tails, self._rules(topic), self._age_ms):
            if len(topic.layout.segments) >= MAX_SEGMENTS:
                return
            self.apply_entries((roll_entry(topic, roll.segment, roll.detail),))
            self.context.observer.observe(events.LayoutChanged(kind="roll", reason=roll.why))
            log.info(
                "segment.rolled", shard=self.state.shard, topic=topic.name, segment=roll.segment, detail=roll.detail
            )

    def _decide(
        self, topic_id: int, rules_of: Callable[[Topic], policy.RetentionRules]
    ) -> Steps[policy.PruneDecision | None]:
        """Return the decision for the state and the rules after the last step; None: the topic was deleted."""
        while (topic := self.state.topics_by_id.get(topic_id)) is not None:
            rules, basis = rules_of(topic), policy.prune_basis(topic.layout, topic.subscriptions.values())
            subscriptions = list(topic.subscriptions.values())
            pruning = yield from policy.decide_pruning(topic.layout, topic.tails, subscriptions, rules, self._age_ms)
            # What is decided is applied without another step: thousands of segments fill a turn of their own.
            yield len(pruning.segments) * (1 + len(topic.subscriptions) // policy.SEGMENTS_PER_COST)
            now = rules_of(topic), policy.prune_basis(topic.layout, topic.subscriptions.values())
            if topic_id in self.state.topics_by_id and (rules, basis) == now:
                return pruning
        return None

    def _entry(self, topic: Topic, segments: Sequence[int], token: str = "") -> e.SegmentsPruned:
        """Return the entry of a prune, and report it."""
        ends, of_topic = topic.record_ends(segments), log.bind(shard=self.state.shard, topic=topic.name)
        for subscription in topic.subscriptions.values():
            if dropped := subscription.unread_in(ends):
                self.context.observer.observe(events.RecordsDropped(count=dropped))
                found = of_topic.bind(subscription=subscription.name, records=dropped)
                found.warning("subscription.records_dropped", unused_since_ms=subscription.consumers.unused_since_ms)
        self.context.observer.observe(events.SegmentsPruned(count=len(segments)))
        of_topic.info("segments.pruned", segments=list(segments))
        return e.SegmentsPruned(topic_id=topic.topic_id, segments=list(segments), token=token)

    async def _delete(self) -> bool:
        """Delete the data of segments that were pruned long enough ago; return False after the first failure."""
        delay_ms = int(self.settings.delete_delay_seconds * 1000)
        due: dict[int, list[int]] = {}
        for (topic_id, segment), tombstone in self.state.tombstones.items():
            if self._age_ms(tombstone.at_ms) >= delay_ms and tombstone.chunk <= self.commit.durable:
                due.setdefault(topic_id, []).append(segment)
        for topic_id, segments in due.items():
            if topic_id not in self.state.topics_by_id and self.has_session(topic_id):
                continue
            try:
                async with asyncio.timeout(DELETE_TIMEOUT_SECONDS):
                    await self._require_own_ledger()
                    objects = await self.context.delete_data(self.state.shard, topic_id, segments)
            except (StoreUnavailableError, ObjectMissingError, LedgerError, TimeoutError) as error:
                log.warning(
                    "data.deletion_failed",
                    shard=self.state.shard,
                    topic_id=topic_id,
                    segments=segments,
                    error=str(error) or f"no reply within {DELETE_TIMEOUT_SECONDS:g} s",
                )
                return False
            self.commit.propose(e.DataDeleted(topic_id=topic_id, segments=segments))
            log.info("data.deleted", shard=self.state.shard, topic_id=topic_id, segments=segments, objects=objects)
        return True

    async def _require_own_ledger(self) -> None:
        """Raise LedgerError if an older ledger was put back, which may still have what was pruned."""
        ledger, state = self.context.ledger, self.state
        await require_own(ledger, state, self.commit.durable)
        await require_complete(ledger, await ledger.numbers(), state.trimmed_below)

    def _count_tombstones(self) -> None:
        shard, pending, delay = self.state.shard, self.state.tombstones, self.settings.delete_delay_seconds
        overdue = max((self._age_ms(each.at_ms) / 1000 - delay for each in pending.values()), default=0.0)
        counted = events.PendingDeletionsCounted(shard=shard, segments=len(pending), overdue_seconds=max(0.0, overdue))
        self.context.observer.observe(counted)

    def _age_ms(self, since_ms: int) -> int:
        return self.state.time.age_ms(since_ms, self.context.now_ms())

    def _segments_pruned_by(self, topic: Topic, token: str) -> tuple[int, ...]:
        """Return the segments that the command ``token`` pruned and whose tombstones still exist."""
        wanted = topic.topic_id, self.state.commands[token]
        return tuple(segment for (of, segment), each in self.state.tombstones.items() if (of, each.at_ms) == wanted)


def _answer(pruning: policy.PruneDecision, segments: Sequence[int]) -> Answer:
    retained = tuple(UnprunedSegment(segment=segment, reason=reason) for segment, reason in pruning.retained.items())
    body = PruneReply(result=PruneResult(segments=tuple(segments), retained=retained, abandoned=pruning.abandoned))
    return lambda _: body
