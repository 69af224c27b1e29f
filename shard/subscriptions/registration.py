"""Decides whether a consumer may register, what that changes, for what it may speak, and when it is lost. Pure.

The first matching rule applies to a registration:

1. An instance that has left or was replaced is rejected: a broker may deliver a copy of its request late, and segments
   would be assigned to a consumer that no longer runs. So is one that a command evicted, otherwise its segments would
   return to it at once. An instance whose grace period ended may register again unchanged.
2. A name that a newer incarnation holds is rejected (`judge_claim`).
3. A type other than the recorded one is rejected, and so is an order that the type does not have.
4. An unknown type becomes known, with the requested or the default order.
5. A joining consumer changes order and balance if it requests them. A returning one does not: its
   request may have been overridden since.
6. A returning consumer may change its own capacity.
7. A subscription has at most `MAX_CONSUMERS`: each registration computes an assignment of all.

`judge_deleted_subscription` comes first. An instance of a deleted subscription, which it names, must neither recreate
it nor join a later one of the same name. The same applies to an instance whose topic was deleted
(`refuse_deleted_topic`). A late copy of a first registration, or an older client, names none, so the shard remembers
the consumers of deleted subscriptions. A restarted program creates a new subscription.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model import entries as e
from headgate.model.layout import SegmentSlice, segment_of
from headgate.protocol.codec import user_of
from headgate.protocol.requests import RegisterConsumer
from shard.state.consumers import RegisteredConsumer, RemovedConsumer, find_removed
from shard.state.subscription import Subscription
from shard.subscriptions.refusal import Refusal, refuse

MISSED_HEARTBEATS = 3
"""Consecutive missed heartbeats after which a consumer is disconnected: two may be lost in transit."""


class Claim(StrEnum):
    FRESH = "fresh"
    """No instance is registered under the name."""
    CURRENT = "current"
    """It is the registered instance."""
    REPLACES = "replaces"
    """It replaces the registered instance."""
    OUTDATED = "outdated"
    """The registered instance has replaced it."""


def judge_claim(known: RegisteredConsumer | None, incarnation: int, client_id: str) -> Claim:
    """Decide which instance owns a name.

    1. An instance is identified by (incarnation, client id). Any instance may claim an unused name.
    2. The same identity is the same instance: it returns to what it holds.
    3. A lower incarnation was replaced: it is fenced.
    4. Any other instance replaces the registered one: a higher incarnation, or the same at another client, which may be
       a second process that must not share a generation.
    """
    if known is None:
        return Claim.FRESH
    if (incarnation, client_id) == (known.incarnation, known.client_id):
        return Claim.CURRENT
    return Claim.OUTDATED if incarnation < known.incarnation else Claim.REPLACES


@dataclass(frozen=True, slots=True)
class ExpiredConsumers:
    disconnected: tuple[str, ...]
    """Connected until now, without a heartbeat for too long."""
    evicted: tuple[str, ...]
    """Disconnected for longer than the grace period."""


def find_expired(
    consumers: Mapping[str, RegisteredConsumer],
    last_seen_seconds: Mapping[str, float],
    *,
    now_seconds: float,
    now_ms: int,
    heartbeat_interval_seconds: float,
    grace_seconds: float,
    lease_seconds: float,
) -> ExpiredConsumers:
    """Return the consumers whose heartbeat or grace period has expired.

    1. A consumer without a heartbeat for `MISSED_HEARTBEATS` intervals is disconnected.
    2. It is evicted when this leader has seen it disconnected for the grace period. By the ledger's clock, which a
       change of leader does not renew, the period may end before, but not before the lease of the consumer: it may be
       alive, and the clock may have been set, or differ from that of the previous leader.

    ``now_ms`` is wall time, comparable with the ledger's. Seconds are the leader's own monotonic clock.
    ``last_seen_seconds`` has an entry for each consumer: the last heartbeat of a connected one, or since when this
    leader has known a disconnected one to be so.
    """
    disconnected: list[str] = []
    evicted: list[str] = []
    for name, consumer in consumers.items():
        unseen_seconds = now_seconds - last_seen_seconds[name]
        if consumer.disconnected_at_ms is None:
            if unseen_seconds >= MISSED_HEARTBEATS * heartbeat_interval_seconds:
                disconnected.append(name)
        elif unseen_seconds >= grace_seconds or (
            unseen_seconds >= lease_seconds and now_ms - consumer.disconnected_at_ms >= grace_seconds * 1000
        ):
            evicted.append(name)
    return ExpiredConsumers(tuple(sorted(disconnected)), tuple(sorted(evicted)))


MAX_CONSUMERS: Final = 1000
"""Limit for the consumers of one subscription, connected or in their grace period, as in Kafka's share groups."""
MAX_SUBSCRIPTIONS: Final = 1000
"""Limit for the subscriptions of one topic: its description names all of them."""


@dataclass(frozen=True, slots=True)
class AcceptedRegistration:
    claim: Claim
    configured: e.SubscriptionConfigured | None
    """The new type, order and balance; None if they do not change."""
    capacity_changed: bool = False
    """Whether a returning consumer has another capacity than the recorded one."""


def subscriptions_error(topic: str, subscriptions: int) -> str | None:
    """Return why a topic with that many subscriptions gets no other one, if that is so."""
    if subscriptions < MAX_SUBSCRIPTIONS:
        return None
    return f"topic {topic!r} has {subscriptions} subscriptions; the limit is {MAX_SUBSCRIPTIONS}: delete one of them"


def judge_deleted_subscription(
    found: Subscription | None, former_consumers: Iterable[RemovedConsumer], request: RegisterConsumer, client_id: str
) -> Refusal | None:
    """Return the rejection of a ``request`` from a consumer of a deleted subscription; None for any other.

    ``found`` is the current subscription of that name. ``former_consumers`` belonged to deleted ones.
    """
    former_id = request.subscription_id
    is_other = former_id is not None and (found is None or found.subscription_id != former_id)
    is_delayed_copy = (
        found is None and find_removed(former_consumers, request.consumer, request.incarnation, client_id) is not None
    )
    if not is_other and not is_delayed_copy:
        return None
    return refuse(
        "fenced",
        f"subscription {request.subscription!r} of consumer {request.consumer!r} was deleted; "
        "restart the program to create a new one",
    )


def refuse_deleted_topic(request: RegisterConsumer) -> Refusal:
    """Return the rejection of a ``request`` that names its subscription, and whose topic does not exist.

    Its consumer was registered, so the topic was deleted: it must stop.
    """
    return refuse(
        "fenced",
        f"topic {request.topic!r} of consumer {request.consumer!r} was deleted; create it and restart the program",
    )


def default_order(subscription_type: e.SubscriptionType) -> e.Order:
    return "strict" if subscription_type == e.SubscriptionType.STREAM else "none"


def order_error(subscription_type: e.SubscriptionType | None, order: e.Order | None) -> str | None:
    """Return why the type cannot have this order, if it cannot."""
    if order == "strict" and subscription_type != e.SubscriptionType.STREAM:
        return f"order 'strict' is for STREAM only; a {subscription_type} subscription has no order"
    return None


def judge_registration(
    subscription: Subscription, request: RegisterConsumer, client_id: str
) -> AcceptedRegistration | Refusal:
    name, known = request.consumer, subscription.consumers.get(request.consumer)
    if (foreign := refuse_other_user(known, name, client_id)) is not None:
        return foreign
    claim = judge_claim(known, request.incarnation, client_id)
    removed = subscription.consumers.find_removed(name, request.incarnation, client_id)
    if claim is not Claim.CURRENT and removed is not None:
        if removed.evicted:
            reason = f"consumer {name!r} was evicted by a command: restart the program to join again"
        elif known is not None:
            reason = replaced_reason(subscription, name)
        else:
            reason = (
                f"incarnation {request.incarnation} of consumer {name!r} left or was replaced; register with a higher "
                "one to return"
            )
        return Refusal("fenced", reason, after_proposed=True)
    if claim is Claim.OUTDATED and known is not None:
        return Refusal("fenced", replaced_reason(subscription, name), after_proposed=True)
    if subscription.type is not None and request.subscription_type != subscription.type:
        return Refusal(
            "invalid",
            f"subscription {subscription.name!r} of topic {subscription.topic!r} is of type {subscription.type}; "
            f"register as {subscription.type}, or use another subscription",
            after_proposed=True,
        )
    if (problem := order_error(request.subscription_type, request.order)) is not None:
        return Refusal("invalid", problem, after_proposed=True)
    if claim is Claim.FRESH and len(subscription.consumers) >= MAX_CONSUMERS:
        return Refusal(
            "invalid",
            f"subscription {subscription.name!r} has {len(subscription.consumers)} consumers; the limit is "
            f"{MAX_CONSUMERS}: stop one of them, or use another subscription",
            after_proposed=True,
        )
    capacity_changed = known is not None and claim is Claim.CURRENT and known.capacity != request.capacity
    return AcceptedRegistration(claim, _changed_configuration(subscription, request, claim), capacity_changed)


def refuse_other_user(known: RegisteredConsumer | None, name: str, client_id: str) -> Refusal | None:
    """Return the refusal of a request about consumer ``name`` that another user than that of ``known`` sends.

    Clients know the names, incarnations and generations of all consumers of their subscription, so these prove nothing.
    """
    if known is None or user_of(known.client_id) == user_of(client_id):
        return None
    return Refusal("forbidden", f"consumer {name!r} belongs to another user: use another name", after_proposed=True)


def replaced_reason(subscription: Subscription, name: str) -> str:
    """Return the message for a consumer instance whose ``name`` another instance has taken over."""
    known = subscription.consumers[name]
    return f"consumer {name!r} is now incarnation {known.incarnation} at client {known.client_id!r}: stop this one"


def _changed_configuration(
    subscription: Subscription, request: RegisterConsumer, claim: Claim
) -> e.SubscriptionConfigured | None:
    order = request.order
    if subscription.type is None:
        order = order or default_order(request.subscription_type)
    elif order is None or claim is Claim.CURRENT:
        order = subscription.order
    balance = subscription.balance if request.balance is None or claim is Claim.CURRENT else request.balance
    if (subscription.type, subscription.order, subscription.balance) == (request.subscription_type, order, balance):
        return None
    return e.SubscriptionConfigured(
        **subscription.ids, subscription_type=request.subscription_type, order=order, balance=balance
    )


def consumer_error(subscription: Subscription, consumer: str, incarnation: int) -> str | None:
    """Return why this instance of ``consumer`` is no member of the subscription; None: it is."""
    known = subscription.consumers.get(consumer)
    if known is None:
        return f"consumer {consumer!r} is not registered"
    if known.incarnation != incarnation:
        return f"consumer {consumer!r} is now incarnation {known.incarnation}, not {incarnation}"
    return None


class Claims:
    """The grants of one consumer. The texts about other holders are made once for a whole request."""

    def __init__(self, subscription: Subscription, consumer: str) -> None:
        self._subscription = subscription
        self._consumer = consumer
        self._described: dict[int, str] | None = None

    def held(self, segment: int, generation: int) -> SegmentSlice | str:
        """Return the slice that the consumer holds at this generation, or that it does not. Revoked slices are held."""
        held = self._subscription.holdings.held_at(segment, generation)
        if held is not None and self._subscription.holdings[held].consumer == self._consumer:
            return held
        holders = self._holders(segment)
        return f"segment {segment} is held by {holders}, not by {self._consumer!r} at generation {generation}"

    def _holders(self, segment: int) -> str:
        if self._described is None:
            found: dict[int, list[str]] = {}
            for held, holding in sorted(self._subscription.holdings.items()):
                text = f"{holding.consumer!r} at generation {holding.generation}"
                found.setdefault(segment_of(held), []).append(text)
            self._described = {each: " and ".join(texts) for each, texts in found.items()}
        return self._described.get(segment, "no consumer")
