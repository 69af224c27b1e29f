"""Checks single entries of the ledger against rules that need nothing but the state before or after them.

1. A consumer name goes to a newer instance only, and no instance that has left or was replaced comes back.
2. A subscription keeps its type, and has the order of its type, unless a simulated program asks for another one.
3. What is drained is sealed and acknowledged to its end, and released, not revoked.
4. A segment is revoked only if its holder has more than its part, so the fewest segments move.
5. A child has all its parents, and the active segments of a topic divide all hashes among themselves. No layout exceeds its
   limit, and no leader splits a segment automatically behind too many undrained generations.
6. No position is beyond the end, and in strict order none is behind an ancestor with unread records.
7. A segment is pruned after its retention. A chunk is deleted after it was compacted, and never the first one of a term.
8. A revoked segment is released within the time limit, as long as one leader waits for it.
9. An acknowledgement of a STREAM begins at offset 0.
10. All streams below 4 KiB/s have one weight.
11. Which producers a shard forgets: `tests.simulation.producer_rules`. Which segments a program does not begin to read
    again: `tests.simulation.holding_rules`.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.scaling.policy import MAX_UNDRAINED_DEPTH
from headgate import SeekResult
from headgate.ledger.objects import ChunkRange, compacted_through, ranges_to_read
from headgate.model import entries as e
from headgate.model.external_topic import parse_hashes
from headgate.model.layout import SEGMENT_HASHES, BucketRange, Layout, SegmentState, slice_of
from shard.requests.topic_commands import MAX_SEGMENTS
from shard.state.ledger_time import MAX_STEP_MS
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.subscriptions.gate import compute_gate, is_gated
from shard.subscriptions.registration import default_order
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.holding_rules import HoldingRules
from tests.simulation.producer_rules import ProducerRules
from tests.support.worlds.one_shard import now_ms

_MANIFEST = re.compile(r"manifests/shard=(\d+)/(\d+)-(\d+)\b.*")

LEAST_WEIGHT = 4096 // 256
"""4 KiB/s in the unit of weights: streams with less weigh as much as one with this load."""
CLOCK_WRONG_SECONDS = 10.0
RELEASE_SECONDS = 10.0
"""How much later than its time limit, or than the end of a freeze, a revocation ends at most: a clock may be a tenth slow."""

_WRITTEN_AT = re.compile(rb'"written_at_ms":\s*(\d+)')


@dataclass
class LedgerRules:
    max_age_ms: int | None = None
    """After how long segments are pruned; None: never without a command."""
    compaction_seconds: float = 0.0
    """How long a manifest exists before chunks that it covers are deleted."""
    revoke_seconds: float = math.inf
    """Time limit of a revocation."""
    max_bytes: int | None = None
    """Above how many bytes of a topic the oldest segments are pruned before that; None: never."""
    most_segments: int = MAX_SEGMENTS
    """Of a layout."""
    calm: bool = False
    """Whether every consumer runs and answers."""
    thawed_at: float = -math.inf
    """When a daemon last continued after a freeze, in which it ended no revocation."""
    clock_set_at: float = -math.inf
    """When the clock of a leader was last set wrong, for some seconds: ages are too high by a step then."""
    unordered: str = ""
    """The STREAM of which an operator sets the order to "none"."""
    holdings: HoldingRules = field(default_factory=HoldingRules)
    producers: ProducerRules = field(default_factory=ProducerRules)
    _replaced: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    """(subscription, consumer) → incarnation and client of the instance whose name another one gets next."""
    _manifests: dict[int, dict[ChunkRange, int]] = field(default_factory=dict)
    """Shard → range of a manifest → when it was written, in milliseconds."""
    _term_began: dict[int, float] = field(default_factory=dict)
    """Shard → when its term began."""
    _revoked: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """(shard, subscription, generation) → when it was revoked."""
    _sealed: dict[tuple[int, int], float] = field(default_factory=dict)
    """(topic, segment) → when it was sealed."""

    def check_before(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Check an entry against the state before it."""
        check = _BEFORE.get(type(entry))
        if check is not None:
            check(self, state, entry)

    def check_after(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Check what an entry has made of the state."""
        check = _AFTER.get(type(entry))
        if check is not None:
            check(self, state, entry)

    # Consumers

    def _check_registration(self, state: ShardState, entry: e.ConsumerRegistered) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        instance = entry.incarnation, entry.client_id
        known = subscription.consumers.get(entry.consumer)
        before = None if known is None else (known.incarnation, known.client_id)
        before = self._replaced.pop((entry.subscription_id, entry.consumer), before)
        if before is not None and entry.incarnation < before[0]:
            raise BrokenPromiseError(f"{entry.consumer}: {instance} took the name of the newer {before}")
        if instance == before and (known is None or entry.capacity == known.capacity):
            raise BrokenPromiseError(f"{entry.consumer}: {instance} replaced itself")
        if subscription.consumers.find_removed(entry.consumer, *instance) is not None:
            raise BrokenPromiseError(f"{entry.consumer}: {instance} came back after it was removed")

    def _check_removal(self, state: ShardState, entry: e.ConsumerRemoved) -> None:
        self.holdings.removed(state, entry)
        subscription = state.subscriptions[entry.subscription_id]
        if entry.reason == "replaced":
            known = subscription.consumers[entry.consumer]
            self._replaced[entry.subscription_id, entry.consumer] = known.incarnation, known.client_id
        for held, holding in subscription.holdings.items():
            if holding.consumer == entry.consumer:
                self._check_wait(state.shard, subscription, f"{held} of {entry.consumer}", holding.generation)

    def _check_configuration(self, state: ShardState, entry: e.SubscriptionConfigured) -> None:
        known = state.subscriptions[entry.subscription_id]
        if known.type is not None and entry.subscription_type != known.type:
            raise BrokenPromiseError(f"{known.name}: its type {known.type} became {entry.subscription_type}")
        self._check_order(known.name, entry.subscription_type, entry.order)

    def _check_creation(self, state: ShardState, entry: e.SubscriptionCreated) -> None:
        if entry.subscription_type is not None:
            self._check_order(entry.subscription, entry.subscription_type, entry.order)
        self._check_positions(state, entry)

    def _check_order(self, name: str, kind: e.SubscriptionType, order: e.Order) -> None:
        if order != default_order(kind) and name != self.unordered:
            raise BrokenPromiseError(f"{name}: the order of a {kind} became {order!r}")

    # Holders

    def _check_drained(self, state: ShardState, entry: e.SegmentsDrained) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        layout = state.topics_by_id[entry.topic_id].layout
        for segment in entry.segments:
            end = layout.segments[segment].end_offset
            if end is None or subscription.position(segment) < end:
                raise BrokenPromiseError(
                    f"{subscription.name}: segment {segment} counts as drained at {subscription.position(segment)} of {end}"
                )

    def _check_release(self, state: ShardState, entry: e.SegmentReleased) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        if self.calm and entry.reason == "timed_out":
            raise BrokenPromiseError(
                f"{subscription.name}: a consumer that runs did not confirm segment {entry.segment}"
            )
        self._check_wait(state.shard, subscription, f"segment {entry.segment}", entry.generation)

    def _check_wait(self, shard: int, subscription: Subscription, what: str, generation: int) -> None:
        """Check how long the present leader has waited for the end of a holding, if that was revoked (rule 8)."""
        revoked_at = self._revoked.pop((shard, subscription.subscription_id, generation), None)
        if revoked_at is not None:
            now = _now_seconds()
            waited = now - max(revoked_at, self._term_began.get(shard, 0.0))
            if waited > self.revoke_seconds + RELEASE_SECONDS and now - self.thawed_at > RELEASE_SECONDS:
                raise BrokenPromiseError(
                    f"{subscription.name}: {what} was revoked, and released only after {waited:.0f} s"
                )

    def _record_term(self, state: ShardState, _: e.TermStarted) -> None:
        self._term_began[state.shard] = _now_seconds()

    def _check_revocation(self, state: ShardState, entry: e.SegmentRevoked) -> None:
        self._revoked[state.shard, entry.subscription_id, entry.generation] = _now_seconds()
        subscription = state.subscriptions[entry.subscription_id]
        holder = subscription.holdings[slice_of(entry.segment, entry.first_bucket, entry.end_bucket)].consumer
        layout = state.topics_by_id[entry.topic_id].layout
        gate = compute_gate(layout, subscription.drained, subscription.type, subscription.order)
        if entry.segment in gate.retired:
            raise BrokenPromiseError(
                f"{subscription.name}: segment {entry.segment} of {holder} is revoked instead of released"
            )
        if subscription.balance == "count" and entry.segment in gate.grantable:
            problem = needless_move(subscription, len(gate.grantable), holder)
            if problem is not None:
                raise BrokenPromiseError(f"{subscription.name}: segment {entry.segment} moves: {problem}")

    @staticmethod
    def _check_weights(state: ShardState, entry: e.SegmentWeightsSet) -> None:
        if light := {segment: weight for segment, weight in entry.weights.items() if weight < LEAST_WEIGHT}:
            name = state.subscriptions[entry.subscription_id].name
            raise BrokenPromiseError(f"{name}: idle segments have weights of their own: {light}")

    def _record_release(self, state: ShardState, entry: e.SegmentReleased) -> None:
        self._check_release(state, entry)
        self.holdings.released(state, entry)

    # Producers

    def _record_opening(self, state: ShardState, entry: e.ProducerOpened) -> None:
        self.producers.opened(state.shard, entry, _now_seconds())

    def _record_batch(self, state: ShardState, entry: e.RecordsStored) -> None:
        self.producers.used(state.shard, entry.producer_id, _now_seconds())

    def _check_expiry(self, state: ShardState, entry: e.ProducersExpired) -> None:
        now = _now_seconds()
        too_high_seconds = MAX_STEP_MS / 1000 * (now - self.clock_set_at < CLOCK_WRONG_SECONDS)
        self.producers.check_expiry(state.shard, entry.producer_ids, now, too_high_seconds)

    # Layouts

    def _check_children(self, state: ShardState, entry: e.SegmentSplit | e.SegmentsMerged | e.SegmentRolled) -> None:
        topic = state.topics_by_id[entry.topic_id]
        parents = sorted(entry.segments) if isinstance(entry, e.SegmentsMerged) else [entry.segment]
        self._sealed.update({(entry.topic_id, parent): _now_seconds() for parent in parents})
        for child in topic.layout.segments[parents[0]].children:
            if sorted(topic.layout.segments[child].parents) != parents:
                raise BrokenPromiseError(
                    f"{topic.name}: segment {child} has the parents {topic.layout.segments[child].parents}, not {parents}"
                )
        ranges = [(each.first_hash, each.last_hash) for each in topic.layout.active()]
        _check_tiling(topic.name, ranges, SEGMENT_HASHES)
        if len(topic.layout.segments) > self.most_segments:
            raise BrokenPromiseError(f"{topic.name}: it has {len(topic.layout.segments)} segments")
        if isinstance(entry, e.SegmentSplit) and entry.reason:
            for subscription in topic.subscriptions.values():
                if subscription.type == "STREAM" and subscription.consumers:
                    deep = _undrained_generations(topic.layout, subscription, entry.segment)
                    if deep >= MAX_UNDRAINED_DEPTH:
                        raise BrokenPromiseError(
                            f"{topic.name}: segment {entry.segment} is split behind {deep} generations"
                        )

    def _check_external(self, state: ShardState, entry: e.TopicImported | e.LayoutExtended) -> None:
        topic = state.topics_by_id[entry.topic_id]
        created = entry.segments if isinstance(entry, e.TopicImported) else entry.created
        known = topic.layout.segments
        for segment in created:
            _check_imported(topic, segment, isinstance(entry, e.LayoutExtended))
        if active := [each.label for each in known.values() if each.children and each.state is SegmentState.ACTIVE]:
            raise BrokenPromiseError(f"{topic.name}: {active} are active, and have children")
        labels = [each.label for each in known.values()]
        if len(set(labels)) < len(labels):
            raise BrokenPromiseError(f"{topic.name}: two segments have one name: {labels}")
        if topic.external.hash_bits:
            ranges = [parse_hashes(topic.external.hashes.get(each.segment_id)) for each in topic.layout.active()]
            _check_tiling(topic.name, [each for each in ranges if each is not None], 1 << topic.external.hash_bits)

    def _check_pruning(self, state: ShardState, entry: e.SegmentsPruned) -> None:
        topic = state.topics_by_id[entry.topic_id]
        for segment in entry.segments:
            sealed_at_ms = topic.layout.segments[segment].sealed_at_ms
            lived_ms = 1000 * (_now_seconds() - self._sealed.get((entry.topic_id, segment), math.inf))
            # A leader decides by what its clock says now. A freeze, or a slow store, delays a chunk that has its time already.
            age_ms = max(max(state.at_ms, now_ms()) - (sealed_at_ms or 0), lived_ms)
            age_ms += MAX_STEP_MS * (_now_seconds() - self.clock_set_at < CLOCK_WRONG_SECONDS)
            stored_bytes = sum(tail.size_bytes for tail in topic.tails.values())
            too_large = self.max_bytes is not None and stored_bytes > self.max_bytes
            if not too_large and (self.max_age_ms is None or age_ms < self.max_age_ms):
                raise BrokenPromiseError(
                    f"{topic.name}: segment {segment} was pruned {age_ms:.0f} ms after it was sealed"
                )

    def _check_data_deletion(self, state: ShardState, entry: e.DataDeleted) -> None:
        topic = state.topics_by_id.get(entry.topic_id)
        if topic is not None and (left := set(entry.segments) & set(topic.layout.segments)):
            raise BrokenPromiseError(f"{topic.name}: data of segments {left} was deleted, and they still exist")

    # Positions

    def _check_acknowledgement(self, state: ShardState, entry: e.RecordsAcknowledged) -> None:
        self.holdings.check_acknowledgement(state, entry)
        subscription = state.subscriptions[entry.subscription_id]
        if subscription.type == "STREAM" and (partial := [each for each in entry.ranges if each.first_offset]):
            raise BrokenPromiseError(f"{subscription.name}: a STREAM has acknowledged only {partial[0]}")

    def _check_positions(self, state: ShardState, entry: e.SubscriptionCreated | e.SubscriptionSeek) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        topic = state.topics_by_id[entry.topic_id]
        if topic.external is not None:
            return
        for segment, position in entry.positions.items():
            if position > topic.tails[segment].next_offset:
                raise BrokenPromiseError(
                    f"{subscription.name}: position {position} of segment {segment} is beyond {topic.tails[segment]}"
                )
        if is_gated(subscription.type, subscription.order):
            _check_nothing_skipped(subscription, topic)

    # Chunks

    def manifest_written(self, path: str, data: bytes) -> None:
        """Note an object that was written, if it is a manifest."""
        if (matched := _MANIFEST.fullmatch(path)) and (written := _WRITTEN_AT.search(data)):
            chunks = ChunkRange(int(matched[2]), int(matched[3]))
            self._manifests.setdefault(int(matched[1]), {}).setdefault(chunks, int(written[1]))

    def check_deletion(self, shard: int, number: int, entries: Iterable[e.AnyEntry], at_ms: int) -> None:
        """Check the deletion of a chunk with these entries."""
        if any(isinstance(entry, e.TermStarted) for entry in entries):
            raise BrokenPromiseError(f"chunk {number} of shard {shard} is the first of a term, and was deleted")
        through = self._compacted_long_enough(shard, at_ms)
        if number > through:
            raise BrokenPromiseError(
                f"chunk {number} of shard {shard} was deleted, and those up to {through} are compacted long enough"
            )

    def _check_trimming(self, state: ShardState, entry: e.LedgerTrimmed) -> None:
        """Check which chunks are given up: the deletion itself may come so much later that it fits by chance."""
        # A leader that was frozen writes a chunk that it began before.
        through = self._compacted_long_enough(state.shard, max(state.at_ms, now_ms()))
        if entry.below > through:
            raise BrokenPromiseError(
                f"shard {state.shard} was trimmed below {entry.below}, and chunks up to {through} are compacted long enough"
            )

    def _compacted_long_enough(self, shard: int, at_ms: int) -> int:
        """Return the last chunk up to which all are in manifests that readers have had time to see."""
        known = self._manifests.get(shard, {})
        visible = [chunks for chunks, written in known.items() if at_ms - written >= 1000 * self.compaction_seconds]
        return compacted_through(ranges_to_read(visible))


def needless_move(subscription: Subscription, grantable: int, holder: str) -> str | None:
    """Return why ``holder`` could keep what is taken from it; None: it holds more than its part, or slices are shared.

    A consumer that makes no progress loses what it holds, and gets nothing: then others may get more than their part.
    """
    if any(each.stalled_at_ms is not None for each in subscription.consumers.values()):
        return None
    if grantable < len(subscription.consumers) or any(isinstance(held, BucketRange) for held in subscription.holdings):
        return None
    counts = dict.fromkeys(subscription.consumers, 0)
    for holding in subscription.holdings.values():
        if holding.revoked_at_ms is None and holding.consumer in counts:
            counts[holding.consumer] += 1
    least, larger = divmod(grantable, len(counts))
    with_more = sum(count > least for count in counts.values())
    has = counts[holder]
    if has > least + 1 or (has == least + 1 and with_more > larger):
        return None
    return f"{holder} holds {has} of {grantable} segments among {len(counts)} consumers"


def check_seek(
    result: SeekResult,
    wanted: Mapping[str, Any],
    subscription: Subscription,
    layout: Layout,
    before: Layout,
    ends: Mapping[int, int],
    firsts: Mapping[int, int],
) -> None:
    """Check what a seek has moved against what was ``wanted``, the arguments of `Admin.seek`.

    ``before`` and ``ends``: the layout, and the end of each segment, when it was asked for. There may be later records: a
    repeated command is answered with the move of the first one and the present end. ``firsts``: segment → the first record
    that was stored at the wanted time or later; one that was not yet stored then may be before it, by a slow clock.
    """
    named = wanted.get("positions", {})
    behind = layout.descendants(set(named)) if is_gated(subscription.type, subscription.order) else set()
    for move in result.moves:
        is_between = ends.get(move.segment, 0) <= move.to_offset <= move.end_offset
        latest = move.to_offset if is_between else move.end_offset
        right = {"earliest": 0, "latest": latest}.get(wanted.get("to", ""), named.get(move.segment))
        if "timestamp_ms" in wanted:
            first = firsts.get(move.segment, move.end_offset)
            right = move.to_offset if ends.get(move.segment, 0) <= move.to_offset <= first else first
        elif right is None and move.segment in behind:
            right = 0
        if move.to_offset != right:
            raise BrokenPromiseError(f"{subscription.name}: a seek to {wanted} moved {move}")
    if wanted.get("to") == "latest":
        for segment in before.segments.values():
            is_known = segment.segment_id in layout.segments
            if is_known and subscription.position(segment.segment_id) < (segment.end_offset or 0):
                raise BrokenPromiseError(f"{subscription.name}: {segment} has unread records after a seek to latest")


def _check_nothing_skipped(subscription: Subscription, topic: Topic) -> None:
    layout = topic.layout
    for segment, position in subscription.progress.positions.items():
        if position > 0 and segment in layout.segments:
            for ancestor in layout.ancestors(segment):
                if subscription.position(ancestor) < topic.tails[ancestor].next_offset:
                    raise BrokenPromiseError(
                        f"{subscription.name}: segment {segment} is at {position}, "
                        f"and its ancestor {ancestor} at {subscription.position(ancestor)} of {topic.tails[ancestor]}"
                    )


def _check_imported(topic: Topic, segment: e.ImportedSegment, update: bool) -> None:
    """Check that a new segment of an external topic has only hashes that its parents had, and some of each."""
    assert topic.external is not None
    hashes = parse_hashes(segment.hashes)
    if (hashes is None) != (topic.external.hash_bits == 0):
        raise BrokenPromiseError(f"{topic.name}: segment {segment.label!r} has the hashes {hashes}")
    if hashes is None:
        return
    found = [parse_hashes(topic.external.hashes.get(parent)) for parent in segment.parents]
    parents = [each for each in found if each is not None]
    if update and not parents:
        raise BrokenPromiseError(f"{topic.name}: segment {segment.label!r} is new, and has no parents")
    apart = [each for each in parents if each[1] < hashes[0] or each[0] > hashes[1]]
    covered = sum(min(each[1], hashes[1]) - max(each[0], hashes[0]) + 1 for each in parents if each not in apart)
    if apart or (parents and covered < hashes[1] - hashes[0] + 1):
        raise BrokenPromiseError(f"{topic.name}: segment {segment.label!r} has {hashes}, its parents {parents}")


def _undrained_generations(layout: Layout, subscription: Subscription, segment: int) -> int:
    """Return the most generations before ``segment`` that are not drained."""
    parents = [each for each in layout.segments[segment].parents if each in layout.segments]
    return max(
        (_undrained_generations(layout, subscription, each) + (each not in subscription.drained) for each in parents),
        default=0,
    )


def _check_tiling(topic: str, ranges: Iterable[tuple[int, int]], hashes: int) -> None:
    expected = 0
    for first, last in sorted(ranges):
        if first != expected:
            raise BrokenPromiseError(f"{topic}: hash {min(first, expected)} has no active segment, or two")
        expected = last + 1
    if expected != hashes:
        raise BrokenPromiseError(f"{topic}: hash {expected} has no active segment")


def _now_seconds() -> float:
    return asyncio.get_running_loop().time()


_BEFORE: Mapping[type, Callable[[LedgerRules, ShardState, Any], None]] = {
    e.ConsumerRegistered: LedgerRules._check_registration,
    e.ConsumerRemoved: LedgerRules._check_removal,
    e.SubscriptionConfigured: LedgerRules._check_configuration,
    e.SegmentsDrained: LedgerRules._check_drained,
    e.SegmentReleased: LedgerRules._record_release,
    e.SubscriptionSeek: lambda rules, state, entry: rules.holdings.rewound(state, entry),
    e.SegmentGranted: lambda rules, state, entry: rules.holdings.granted(state, entry),
    e.SegmentRevoked: LedgerRules._check_revocation,
    e.SegmentsPruned: LedgerRules._check_pruning,
    e.DataDeleted: LedgerRules._check_data_deletion,
    e.SegmentWeightsSet: lambda _, state, entry: LedgerRules._check_weights(state, entry),
    e.LedgerTrimmed: LedgerRules._check_trimming,
    e.TermStarted: LedgerRules._record_term,
    e.ProducerOpened: LedgerRules._record_opening,
    e.RecordsStored: LedgerRules._record_batch,
    e.RecordsAcknowledged: LedgerRules._check_acknowledgement,
    e.ProducersExpired: LedgerRules._check_expiry,
}
_AFTER: Mapping[type, Callable[[LedgerRules, ShardState, Any], None]] = {
    e.SubscriptionCreated: LedgerRules._check_creation,
    e.SubscriptionSeek: LedgerRules._check_positions,
    e.SegmentSplit: LedgerRules._check_children,
    e.SegmentRolled: LedgerRules._check_children,
    e.SegmentsMerged: LedgerRules._check_children,
    e.TopicImported: LedgerRules._check_external,
    e.LayoutExtended: LedgerRules._check_external,
}
