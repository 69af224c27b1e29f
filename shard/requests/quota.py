"""Judge whether entries keep within the quotas of the users who own what they add. Pure.

Quotas are judged on the entries that a command has decided, so a repeated command, which has none,
is answered and not refused. The owner of a topic pays for its segments, also for those that others split.

A user who has used up its quota of producers gets another one in exchange for its anonymous one that
was used least recently, once that was idle for `IDLE_PRODUCER_MS`: programs that end leave their
identity behind for a week. A producer in use is never exchanged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from headgate.model import entries as e
from headgate.protocol.requests import RegisterConsumer
from metrics.label_values import Quota
from shard.access.quotas import Limits, exceeded_text
from shard.requests.producer_expiry import MAX_EXPIRED_AT_ONCE
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal

IDLE_PRODUCER_MS: Final = 600_000
"""Five times the default delivery timeout, after which every batch of the producer has an outcome."""

Growth = Mapping[tuple[str, Quota], int]
"""(user, quota) → how many are added."""
LimitsOf = Callable[[str], Limits]


def growth_of(entries: Iterable[e.AnyEntry], state: ShardState) -> Growth:
    growth: Counter[tuple[str, Quota]] = Counter()
    for entry in entries:
        match entry:
            case e.TopicCreated():
                growth[entry.user, "topics"] += 1
                growth[entry.user, "segments"] += entry.segments
            case e.TopicImported():
                growth[entry.user, "topics"] += 1
                growth[entry.user, "segments"] += len(entry.segments)
            case e.LayoutExtended():
                growth[state.topics_by_id[entry.topic_id].user, "segments"] += len(entry.created)
            case e.SegmentSplit():
                growth[state.topics_by_id[entry.topic_id].user, "segments"] += 2
            case e.SegmentsMerged():  # A roll of retention is never refused: without it, nothing is pruned.
                growth[state.topics_by_id[entry.topic_id].user, "segments"] += 1
            case e.SubscriptionCreated():
                growth[entry.user, "subscriptions"] += 1
            case e.ProducerOpened() if entry.producer_id not in state.producers and entry.replaced_id is None:
                growth[entry.user, "producers"] += 1
    return growth


def judge_growth(growth: Growth, state: ShardState, limits_of: LimitsOf) -> Refusal | None:
    """Return the refusal for the first quota that ``growth`` exceeds."""
    for (user, quota), added in growth.items():
        found, limit = count_of(state, user, quota), limits_of(user).of(quota)
        if added and found + added > limit:
            return Refusal("quota_exceeded", exceeded_text(user, quota, limit, found), after_barrier=True, quota=quota)
    return None


def judge_entries(entries: Iterable[e.AnyEntry], state: ShardState, limits_of: LimitsOf) -> Refusal | None:
    """Return the refusal for the first quota that ``entries`` exceed."""
    return judge_growth(growth_of(entries, state), state, limits_of)


def keep_within_quotas(
    entries: Sequence[e.AnyEntry], state: ShardState, limits_of: LimitsOf, *, age_ms: Callable[[int], int], durable: int
) -> Sequence[e.AnyEntry] | Refusal:
    """Return what to write instead of ``entries``: the same, or first the producers that give way; or the refusal.

    ``age_ms`` returns the age of a ledger time. ``durable``: the newest durable chunk.
    """
    over = judge_entries(entries, state, limits_of)
    if over is None or over.quota != "producers":
        return over or entries
    user = next(entry.user for entry in entries if isinstance(entry, e.ProducerOpened))
    surplus = state.producers.count_of(user) + 1 - int(limits_of(user).producers)
    idle = [
        producer.producer_id
        for producer in islice(state.producers.anonymous_of(user), min(surplus, MAX_EXPIRED_AT_ONCE))
        if producer.last_chunk <= durable and age_ms(producer.last_at_ms) >= IDLE_PRODUCER_MS
    ]
    return over if len(idle) < surplus else (e.ProducersExpired(producer_ids=idle), *entries)


def judge_joining(request: RegisterConsumer, user: str, state: ShardState, limits_of: LimitsOf) -> Refusal | None:
    """Return the refusal if ``request`` adds a consumer, or also its subscription, beyond a quota of ``user``."""
    subscription = state.topics[request.topic].subscriptions.get(request.subscription)
    if subscription is not None and request.consumer in subscription.consumers:
        return None
    growth: Growth = {(user, "subscriptions"): int(subscription is None), (user, "consumers"): 1}
    return judge_growth(growth, state, limits_of)


def count_of(state: ShardState, user: str, quota: Quota) -> int:
    """Return how many of the objects that ``quota`` limits ``user`` has on this shard."""
    match quota:
        case "producers":
            return state.producers.count_of(user)
        case "topics" | "segments" | "subscriptions" | "consumers":
            return state.usage.get((user, quota), 0)
        case _:
            raise AssertionError(f"{quota} is no number of objects")
