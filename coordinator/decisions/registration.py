"""Decide whether a consumer may register, and what its registration makes known of the subscription.

A subscription and a request in, a value out. What the consumer may read then is for the gate, the target and the
handover. First match wins:

1. A copy of the registration of a program that has left, or was replaced, is rejected: a broker may double a message
   and deliver the copy late, and whoever sent it is gone. Were it taken, segments would wait for a consumer that nobody
   runs. One that was evicted may come back as it was.
2. A name that a newer incarnation has is rejected (coordinator.decisions.sessions).
3. Another type than the one on record is rejected, and an order that the type does not have.
4. A type that was not on record becomes known, with the order asked for or the one that suits the type.
5. A consumer that joins with an order or a balance of its own changes it. One that only comes back does not: what it
   asked for was done when it joined, and somebody may have changed it since.
6. A capacity is the consumer's own: it may tell another one whenever it comes back.

Before all that, a registration may be about a subscription that was deleted (`judge_deleted_subscription`). Whoever
deleted it wants it gone: a program that was in it neither begins another under that name nor joins one that somebody
else has begun. It says itself that it was in it. Where it does not, because the registration is a late copy of its
first one, or comes from a client of an earlier version, the shard remembers who was there. A program that is started
anew begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.decisions.sessions import Claim, judge_claim
from coordinator.state.subscription import RemovedConsumer, Subscription, includes_consumer
from headgate.model import entries as e
from headgate.protocol import messages as m


@dataclass(frozen=True, slots=True)
class Admission:
    """It may register."""

    claim: Claim
    configured: e.SubscriptionConfigured | None
    """What its registration changes of type, order and balance."""
    capacity_changed: bool = False
    """Whether it comes back with another capacity than the one on record."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """It may not."""

    verdict: m.Verdict
    reason: str


def judge_deleted_subscription(
    found: Subscription | None, former_consumers: Iterable[RemovedConsumer], request: m.RegisterConsumer
) -> Refusal | None:
    """Return why ``request`` is rejected if it is from a program of a deleted subscription; None: it is not.

    ``found``: the subscription that has the name now; ``former_consumers``: who was in deleted ones of that name.
    """
    before = request.subscription_id
    other = before is not None and (found is None or found.subscription_id != before)
    late = found is None and includes_consumer(
        former_consumers, request.consumer, request.incarnation, request.client_id
    )
    if not other and not late:
        return None
    return Refusal(
        "fenced",
        f"subscription {request.subscription!r}, in which consumer {request.consumer!r} was, is deleted; "
        "to begin a new one start the program again",
    )


def judge_registration(subscription: Subscription, request: m.RegisterConsumer) -> Admission | Refusal:
    """Return what ``request`` may do."""
    name, known = request.consumer, subscription.consumers.get(request.consumer)
    claim = judge_claim(known, request.incarnation, request.client_id)
    if claim is not Claim.CURRENT and subscription.was_removed(name, request.incarnation, request.client_id):
        return Refusal(
            "fenced",
            f"consumer {name!r} left as incarnation {request.incarnation}; to come back register with a higher one",
        )
    if claim is Claim.OUTDATED and known is not None:
        return Refusal("fenced", replaced_reason(subscription, name))
    if subscription.type is not None and request.subscription_type != subscription.type:
        return Refusal(
            "invalid",
            f"subscription {subscription.name!r} of topic {subscription.topic!r} is of type {subscription.type}; "
            f"register as {subscription.type}, or use another subscription",
        )
    if request.order == "strict" and request.subscription_type != e.SubscriptionType.STREAM:
        kind = request.subscription_type
        return Refusal("invalid", f"order 'strict' is for STREAM; a {kind} takes records in any order")
    capacity_changed = known is not None and claim is Claim.CURRENT and known.capacity != request.capacity
    return Admission(claim, _changed_configuration(subscription, request, claim), capacity_changed)


def replaced_reason(subscription: Subscription, name: str) -> str:
    """Return what a program is told whose ``name`` another one has."""
    known = subscription.consumers[name]
    return f"consumer {name!r} is incarnation {known.incarnation} at client {known.client_id!r} now: stop this one"


def _changed_configuration(
    subscription: Subscription, request: m.RegisterConsumer, claim: Claim
) -> e.SubscriptionConfigured | None:
    wanted = request.order
    if subscription.type is None:
        wanted = wanted or ("strict" if request.subscription_type == e.SubscriptionType.STREAM else "none")
    elif wanted is None or claim is Claim.CURRENT:
        wanted = subscription.order
    balance = subscription.balance if request.balance is None or claim is Claim.CURRENT else request.balance
    if (subscription.type, subscription.order, subscription.balance) == (request.subscription_type, wanted, balance):
        return None
    return e.SubscriptionConfigured(
        topic_id=subscription.topic_id,
        subscription_id=subscription.subscription_id,
        subscription_type=request.subscription_type,
        order=wanted,
        balance=balance,
    )
