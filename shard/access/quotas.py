"""What one user may have, and how much it may send. Pure.

Limits on objects hold for one shard, because a leader knows the objects of its own shard only. Limits on rates hold for
one daemon, because they protect its event loop, as Kafka's quotas hold for one broker (KIP-13, KIP-124).

Rates are paid for over time. Each request adds its cost to the time until which its user has spent
its rates (a token bucket: "generic cell rate algorithm", ITU-T I.371):

1. Up to `BURST_SECONDS` ahead of the clock, the reply is sent at once.
2. Up to `MAX_DELAY_SECONDS` further ahead, the request is carried out, and its reply is delayed until
   the debt is paid (KIP-124). A client that waits for replies slows down, and nothing is repeated.
3. Beyond that, the request is not read. It is refused as ``unavailable``, so that clients pause and
   send it again. It adds no cost, so the debt falls, and the next request is accepted.
4. At most `MAX_REFUSALS_PER_SECOND` are answered; to a client, others are lost messages.
5. When a rate changes, what was sent before counts at the new one: a user whose rate was raised may send sooner.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, get_args

from headgate.model import entries as e
from headgate.protocol.requests import RegisterConsumer
from metrics.label_values import Quota
from shard.state.producers import MAX_EXPIRED_AT_ONCE
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal

QUOTAS: Final[tuple[Quota, ...]] = get_args(Quota)
BURST_SECONDS: Final = 1.0
"""Seconds of a rate that may be used at once."""
MAX_DELAY_SECONDS: Final = 1.0
"""The longest delay of a reply: far below the time after which clients repeat a request."""
MAX_REFUSALS_PER_SECOND: Final = 500.0
"""Answered refusals per user for its rates. An answer costs about as much as ten refusals without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The quotas of one user; `math.inf`: no limit. docs/security.md gives the reasons for the defaults."""

    topics: float = 1000
    segments: float = 10_000
    """The segments of its topics, including sealed ones."""
    subscriptions: float = 2000
    consumers: float = 2000
    producers: float = 5000
    """Named and anonymous."""
    requests_per_second: float = 5000
    bytes_per_second: float = 100_000_000

    def of(self, quota: Quota) -> float:
        limit: float = getattr(self, quota)
        return limit

    def changed(self, values: Mapping[Quota, float]) -> Limits:
        """Return these limits with ``values`` in place of some."""
        return dataclasses.replace(self, **{str(quota): limit for quota, limit in values.items()})


DEFAULT_LIMITS: Final = Limits()
UNLIMITED: Final = DEFAULT_LIMITS.changed(dict.fromkeys(QUOTAS, math.inf))


def limit_text(limit: float) -> str:
    return "unlimited" if limit == math.inf else f"{limit:.0f}"


def limits_of_user(default: Limits, of_roles: Iterable[Mapping[Quota, float]], own: Mapping[Quota, float]) -> Limits:
    """Return the limits of one user: its ``own``, else the most generous of its roles, else the default."""
    values: dict[Quota, float] = {}
    for of_role in of_roles:
        values |= {quota: max(limit, values.get(quota, 0)) for quota, limit in of_role.items()}
    return default.changed({**values, **own})


class Spending(NamedTuple):
    """How long, in seconds of the loop's clock, a user has spent its rates, and which ones they were."""

    requests_until: float = 0.0
    bytes_until: float = 0.0
    refusals_until: float = 0.0
    limits: Limits = UNLIMITED

    def under(self, limits: Limits, now: float) -> Spending:
        """Return the same spending at the rates of ``limits`` (rule 5)."""
        if limits is self.limits:
            return self
        requests, size_bytes = self.requests_until - now, self.bytes_until - now
        if requests > 0:  # Then the rate is not infinite.
            requests *= self.limits.requests_per_second / limits.requests_per_second
        if size_bytes > 0:
            size_bytes *= self.limits.bytes_per_second / limits.bytes_per_second
        return Spending(now + requests, now + size_bytes, self.refusals_until, limits)

    def request(self, size_bytes: int, now: float) -> Spending:
        return Spending(
            max(self.requests_until, now) + 1 / self.limits.requests_per_second,
            max(self.bytes_until, now) + size_bytes / self.limits.bytes_per_second,
            self.refusals_until,
            self.limits,
        )

    def refusal(self, now: float) -> Spending:
        return self._replace(refusals_until=max(self.refusals_until, now) + 1 / MAX_REFUSALS_PER_SECOND)

    def debt_seconds(self, now: float) -> float:
        """Return how far the burst is exceeded; not above 0 if it is not."""
        return max(self.requests_until, self.bytes_until) - BURST_SECONDS - now

    def exceeded(self, now: float, delay_seconds: float = MAX_DELAY_SECONDS) -> Quota | None:
        """Return the rate that delays replies by more than ``delay_seconds`` now; by default, that refuses requests."""
        if self.debt_seconds(now) <= delay_seconds:
            return None
        return "requests_per_second" if self.requests_until > self.bytes_until else "bytes_per_second"

    def may_answer_refusal(self, now: float) -> bool:
        return self.refusals_until - now <= 1.0


def exceeded_text(user: str, quota: Quota, limit: float, found: int | None = None) -> str:
    """Return why a request of ``user`` is refused. ``found``: how many of these objects it has on this shard."""
    if found is None:
        return (
            f"user {user} exceeds its quota {quota} of {limit:.0f} on this daemon: send less, or raise the quota in "
            "the access file"
        )
    return (
        f"user {user} has {found} {quota} on this shard, and its quota {quota} is {limit:.0f}: delete some, or raise "
        "the quota in the access file"
    )


IDLE_PRODUCER_MS: Final = 600_000
"""Five times the default delivery timeout, after which every batch of the producer has an outcome."""

Growth = Mapping[tuple[str, Quota], int]
"""(user, quota) → how many are added."""
LimitsOf = Callable[[str], Limits]


def growth_of(entries: Iterable[e.AnyEntry], state: ShardState) -> Growth:
    """Return what ``entries`` add, and to whom. The owner of a topic pays for segments, also when others split them.

    Quotas are judged on what a command has decided, so a repeated command, which has none, is answered and not refused.
    """
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
    return judge_growth(growth_of(entries, state), state, limits_of)


def keep_within_quotas(
    entries: Sequence[e.AnyEntry], state: ShardState, limits_of: LimitsOf, *, age_ms: Callable[[int], int], durable: int
) -> Sequence[e.AnyEntry] | Refusal:
    """Return what to write instead of ``entries``: the same, or first the producers that give way; or the refusal.

    A user who has used up its quota of producers gets another one in exchange for its anonymous one that was used least
    recently, once that was idle for `IDLE_PRODUCER_MS`: programs that end leave their identity behind for a week. A
    producer in use is never exchanged.

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
