"""Decides which segments of a topic are rolled and pruned now, and up to which chunk a ledger is trimmed. Pure.

1. Only sealed segments are pruned, ancestors first. A segment with a retained ancestor is retained,
   so a parent that is missing from the layout has nothing more for the gate to wait for.
2. A sealed segment is due once it is older than the greatest age, or once the topic has its greatest size
   without it. Without subscriptions it is then pruned.
3. It is retained until it is drained in every STREAM, QUEUE and untyped subscription. A position at its sealed end is
   enough if children wait for nothing, or it began there; else a prune would open them on the leader's word alone.
4. CHECKPOINT subscriptions retain a segment for a bounded time after it was sealed. (Pulsar's
   scalable topics: as long as the subscription exists.)
5. A subscription that had no consumers for the subscription expiry retains nothing, unless it keeps dead letters, nor
   does one that is ignored, and none does if the topic ignores subscriptions. Such a subscription loses its unread
   records, which is counted and reported. If children wait for a segment, its holder gives it back before it is pruned.
6. An active segment with records is rolled at an eighth of the greatest age, or of its share of the greatest size, so
   that nothing is kept for much longer (Kafka and Pulsar roll segments and ledgers likewise). It is not while a
   parent is due: then a subscription retains that, and another segment would free nothing.
7. One prune removes thousands of segments of a topic with few subscriptions, and hundreds of one with many: it is one
   entry, which each subscription folds, and stalls the leader. The next prune removes more.

Times are ages that leaders lived through (shard.state.ledger_time): no step of a clock prunes anything.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Literal

from controller.settings.sections import RetentionSettings
from headgate.ledger.objects import ChunkRange, compacted_through, ranges_to_read
from headgate.model.entries import SubscriptionType, TopicPolicy
from headgate.model.identifiers import DEAD_LETTERS
from headgate.model.layout import Layout
from headgate.model.text import listed
from shard.state.subscription import Subscription
from shard.state.topic import SegmentTail
from shard.steps import Steps
from shard.subscriptions.gate import is_gated, tracks_acknowledgements

KEEP_FOREVER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    max_age_ms: int
    """Time after sealing; `KEEP_FOREVER`: no segment is too old."""
    max_bytes: int = KEEP_FOREVER
    """Bytes of keys and values of the topic; `KEEP_FOREVER`: no topic is too large."""
    ignored: Literal["all", "chosen", "none"] = "chosen"
    """Subscriptions that retain nothing; "chosen": those whose delivery policy says so."""
    checkpoint_retention_ms: int
    subscription_expiry_ms: int
    """0: subscriptions do not expire."""

    @property
    def keeps_everything(self) -> bool:
        return self.max_age_ms == self.max_bytes == KEEP_FOREVER


PARTS: Final = 8
"""An active segment is rolled at this part of the greatest age or size."""
SHORTEST_ROLL_MS: Final = 5_000
MAX_PRUNE_COST: Final = 24_576
"""Rule 7: a pruned segment costs 8, and one more for each subscription."""
SEGMENTS_PER_COST = 8
"""Sealed segments of one subscription that are looked at for the cost of one unit."""


@dataclass(frozen=True, slots=True)
class Roll:
    segment: int
    why: Literal["age", "size"]
    detail: str


@dataclass(frozen=True, slots=True)
class PruneDecision:
    segments: tuple[int, ...]
    """Ancestors first."""
    retained: Mapping[int, str]
    """Sealed segment → reason."""
    abandoned: tuple[str, ...]
    """Names of the subscriptions that retain nothing, because they expired."""


PruneBasis = tuple[Layout, tuple[tuple[object, ...], ...]]


def prune_basis(layout: Layout, subscriptions: Iterable[Subscription]) -> PruneBasis:
    """Return what a decision depends on. While it is equal, what may be pruned does not become less.

    Only acknowledgements and drained segments change meanwhile, and both only allow more.
    """
    return layout, tuple(
        (
            each.subscription_id,
            each.type,
            each.order,
            each.seek_generation,
            each.consumers.unused_since_ms,
            each.redelivery.policy.ignored_by_retention,
        )
        for each in subscriptions
    )


def rules_for(policy: TopicPolicy, settings: RetentionSettings) -> RetentionRules:
    """Return the rules of one topic: those of its policy, else those of the cluster."""
    seconds = settings.max_age_seconds
    age_ms = KEEP_FOREVER if seconds < 0 else int(seconds * 1000)
    ignores = policy.ignore_subscriptions
    return RetentionRules(
        max_age_ms=age_ms if policy.max_age_ms is None else policy.max_age_ms,
        max_bytes=settings.max_bytes if policy.max_bytes is None else policy.max_bytes,
        ignored="all" if (settings.ignore_subscriptions if ignores is None else ignores) else "chosen",
        checkpoint_retention_ms=int(settings.checkpoint_retention_seconds * 1000),
        subscription_expiry_ms=int(settings.subscription_expiry_seconds * 1000),
    )


def decide_rolls(
    layout: Layout, tails: Mapping[int, SegmentTail], rules: RetentionRules, age_ms: Callable[[int], int]
) -> list[Roll]:
    """Return which active segments are rolled now (rule 6)."""
    rolls: list[Roll] = []
    due = _due(layout, tails, rules, _sealed_ages(layout, age_ms))
    part_bytes = rules.max_bytes // (PARTS * max(1, layout.active_count))
    for segment in layout.active():
        tail, age = tails[segment.segment_id], age_ms(segment.created_at_ms)
        if not tail.next_offset or age < SHORTEST_ROLL_MS or any(parent in due for parent in segment.parents):
            continue
        if rules.max_age_ms != KEEP_FOREVER and age >= rules.max_age_ms // PARTS:
            rolls.append(Roll(segment.segment_id, "age", f"{_seconds(age)} s old, of {_seconds(rules.max_age_ms)} s"))
        elif rules.max_bytes != KEEP_FOREVER and tail.size_bytes >= part_bytes:
            rolls.append(Roll(segment.segment_id, "size", f"{tail.size_bytes} bytes, of {rules.max_bytes}"))
    return rolls


def decide_pruning(
    layout: Layout,
    tails: Mapping[int, SegmentTail],
    subscriptions: Collection[Subscription],
    rules: RetentionRules,
    age_ms: Callable[[int], int],
) -> Steps[PruneDecision]:
    """Decide for the state that the steps find; see `prune_basis`. ``age_ms`` returns the age of a ledger time."""
    yield len(layout.segments)
    by_name = sorted(subscriptions, key=attrgetter("name"))
    abandoned = tuple(each.name for each in by_name if _is_abandoned(each, rules, age_ms))
    retaining = [] if rules.ignored == "all" else [each for each in by_name if each.name not in abandoned]
    if rules.ignored == "chosen":
        retaining = [each for each in retaining if not each.redelivery.policy.ignored_by_retention]
    # Ancestors have lower ids than their descendants.
    sealed_ms = _sealed_ages(layout, age_ms)
    if rules.keeps_everything:
        forever = dict.fromkeys(sealed_ms, "the topic has unlimited retention")
        return PruneDecision((), MappingProxyType(forever), abandoned)
    due = _due(layout, tails, rules, sealed_ms)
    kept = yield from _kept_for_subscriptions(layout, sealed_ms, due, retaining, rules)
    yield len(sealed_ms)
    pruned: dict[int, None] = {}
    """In order, ancestors first."""
    retained: dict[int, str] = {}
    at_most = MAX_PRUNE_COST // (8 + len(subscriptions))
    for segment, age in sealed_ms.items():
        blocking = [
            parent for parent in layout.segments[segment].parents if parent in layout.segments and parent not in pruned
        ]
        if blocking:
            retained[segment] = f"its ancestors {listed(blocking)} are retained"
        elif segment not in due:
            retained[segment] = _not_due(age, rules)
        elif segment in kept:
            retained[segment] = kept[segment]
        elif len(pruned) >= at_most:
            retained[segment] = f"one prune removes at most {at_most} segments of this topic: prune again"
        else:
            pruned[segment] = None
    return PruneDecision(tuple(pruned), MappingProxyType(retained), abandoned)


def _sealed_ages(layout: Layout, age_ms: Callable[[int], int]) -> dict[int, int]:
    """Return sealed segment → how long ago it was sealed, in ms; ancestors first."""
    age_of = cache(age_ms)  # Of few different times: an import seals thousands of segments at once.
    segments = sorted(layout.segments.items())
    return {segment: age_of(known.sealed_at_ms) for segment, known in segments if known.sealed_at_ms is not None}


def _due(
    layout: Layout, tails: Mapping[int, SegmentTail], rules: RetentionRules, sealed_ms: Mapping[int, int]
) -> set[int]:
    """Return the sealed segments that are too old, or too much (rule 2)."""
    by_size = rules.max_bytes != KEEP_FOREVER
    left_bytes = sum(tails[segment].size_bytes for segment in layout.segments) if by_size else 0
    due: set[int] = set()
    for segment, age in sealed_ms.items():
        size_bytes = tails[segment].size_bytes if by_size else 0
        old = rules.max_age_ms != KEEP_FOREVER and age >= rules.max_age_ms
        if old or (by_size and left_bytes - size_bytes >= rules.max_bytes):
            due.add(segment)
            left_bytes -= size_bytes
    return due


def _not_due(age_ms: int, rules: RetentionRules) -> str:
    limits = [f"for {_seconds(rules.max_age_ms)} s (max-age)"] * (rules.max_age_ms != KEEP_FOREVER)
    limits += [f"while the topic has at most {rules.max_bytes} bytes (max-bytes)"] * (rules.max_bytes != KEEP_FOREVER)
    return f"sealed {_seconds(age_ms)} s ago, retained {', and '.join(limits)}"


def _kept_for_subscriptions(
    layout: Layout,
    sealed_ms: Mapping[int, int],
    due: set[int],
    retaining: Iterable[Subscription],
    rules: RetentionRules,
) -> Steps[dict[int, str]]:
    """Return the segments of ``due`` that a subscription retains, and why: the first one by name."""
    ends = {segment: layout.segments[segment].end_offset or 0 for segment in sealed_ms}
    due = due.copy()
    kept: dict[int, str] = {}
    for subscription in retaining:
        yield 1 + len(due) // SEGMENTS_PER_COST
        if subscription.type == SubscriptionType.CHECKPOINT:
            found = {
                segment: f"sealed {_seconds(sealed_ms[segment])} s ago, retained for "
                f"{_seconds(rules.checkpoint_retention_ms)} s for CHECKPOINT subscription {subscription.name!r}"
                for segment in due
                if sealed_ms[segment] < rules.checkpoint_retention_ms
            }
        else:
            found = {
                segment: f"subscription {subscription.name!r} has acknowledged {subscription.position(segment)} of "
                f"{ends[segment]} records{_missing_text(subscription, segment, ends[segment])}"
                for segment in _unfinished(subscription, due, ends)
            }
        kept |= found
        due -= found.keys()
    return kept


def _missing_text(subscription: Subscription, segment: int, end: int) -> str:
    if subscription.type == SubscriptionType.STREAM and (dead := subscription.redelivery.records(segment)):
        return f", and {dead} of them are not yet in their dead-letter topic"
    return "" if subscription.position(segment) < end or subscription.type is None else ", and a drain check is missing"


def _unfinished(subscription: Subscription, segments: AbstractSet[int], ends: Mapping[int, int]) -> Iterable[int]:
    """Return those of ``segments`` that rule 3 retains, or whose records are not yet in the dead-letter topic."""
    if not tracks_acknowledgements(subscription.type):
        return segments
    progress, dead = subscription.progress, subscription.redelivery.attempts
    read_to = progress.start_positions if is_gated(subscription.type, subscription.order) else progress.positions
    found = [each for each in segments - subscription.drained if read_to.get(each, 0) < ends[each]]
    return found + [each for each in segments & dead.keys() if each not in found]


def _is_abandoned(subscription: Subscription, rules: RetentionRules, age_ms: Callable[[int], int]) -> bool:
    since = subscription.consumers.unused_since_ms
    if not rules.subscription_expiry_ms or since is None or subscription.name.startswith(DEAD_LETTERS):
        return False
    return age_ms(since) >= rules.subscription_expiry_ms


def _seconds(milliseconds: int) -> int:
    return milliseconds // 1000


def trim_point(snapshots: Sequence[int], manifests: Iterable[tuple[ChunkRange, float]], *, delay_ms: float) -> int:
    """Return the number below which a shard's old chunks can be deleted; 1 if none can.

    A chunk can be deleted when none of these needs it:

    1. Restore: it is below all snapshots, of which two are intact, so that one which is damaged later costs only time.
       The chunk of the oldest is kept, as evidence that the snapshot is not ahead of the ledger.
    2. Readers: a manifest, which covers only counted chunks, has covered it for the whole delay. The last chunk of
       such a range is kept as evidence for the count.
    3. Fencing: it is not the first chunk of a term. A deposed leader's next number must stay taken
       (slatedb/slatedb#352).

    `LedgerTrimmed` is durable before any chunk is deleted, so a trimmed beginning can be distinguished from a loss.

    ``snapshots``: the numbers of all, ascending; the caller looks whether two are intact. ``manifests``: the range and
    age in milliseconds of each one that exists, replaced ones included.
    """
    visible = [chunks for chunks, age_ms in manifests if age_ms >= delay_ms]
    return 1 if not snapshots[1:] else max(1, min(snapshots[0], compacted_through(ranges_to_read(visible))))


def deletable(numbers: Iterable[int], *, below: int, term_start_chunks: Iterable[int]) -> list[int]:
    """Return the chunks among ``numbers`` that can be deleted, oldest first."""
    kept = set(term_start_chunks)
    return sorted(number for number in numbers if number < below and number not in kept)
