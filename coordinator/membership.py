"""The consumers of one subscription: who is registered, and when this leader heard each of them last.

Performs what shard.subscriptions.registration decides about heartbeats: proposes entries, and tells a removed consumer
why. It does not assign segments. The times of the last contact are not in the ledger: a new leader gives every consumer
one heartbeat window.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from coordinator.context import SubscriptionContext
from headgate.model import entries as e
from headgate.protocol.requests import Heartbeat, RegisterConsumer
from metrics import events
from shard.reporting.description import fenced_push
from shard.state.consumers import RegisteredConsumer
from shard.subscriptions.registration import find_expired

MAX_DISCONNECTED: Final = 256
"""Consumers whose disconnection is recorded in one step."""
log = structlog.get_logger(__name__)


class Membership:
    def __init__(self, context: SubscriptionContext, on_removed: Callable[[str], None]) -> None:
        """``on_removed`` is called with each name before its removal is proposed, while it has its holdings."""
        self._context = context
        self._subscription = context.subscription
        self._clock = asyncio.get_running_loop().time
        self._on_removed = on_removed
        self._log = log.bind(topic=context.topic.name, subscription=context.subscription.name)
        self._last_seen_at = dict.fromkeys(context.subscription.consumers, self._clock())
        self._unhandled: dict[str, list[tuple[int, int, int | None]]] = {}
        """Consumer of an external topic → what its last heartbeat said."""

    def add(self, request: RegisterConsumer, client_id: str) -> None:
        """Register a consumer whose name is free."""
        self.record_registration(request, client_id)
        self._last_seen_at[request.consumer] = self._clock()
        self._context.observer.observe(events.ConsumerRegistered())

    def record_registration(self, request: RegisterConsumer, client_id: str) -> None:
        """Propose what the consumer says about itself."""
        self._context.ledger.propose(
            e.ConsumerRegistered(
                **self._subscription.ids,
                consumer=request.consumer,
                incarnation=request.incarnation,
                client_id=client_id,
                supports_bucket_ranges=request.supports_bucket_ranges,
                capacity=request.capacity,
                host=request.host,
                version=request.version,
            )
        )

    def remove(self, names: Iterable[str], reason: e.LeaveReason, fenced: str | None, *, token: str = "") -> None:
        """Remove ``names`` and their holdings. ``fenced`` is the message to them; None: send none."""
        for name in names:
            consumer = self._subscription.consumers[name]
            self._on_removed(name)
            who = self._subscription.ids | {"consumer": name, "incarnation": consumer.incarnation}
            self._context.ledger.propose(e.ConsumerRemoved(**who, reason=reason, token=token))
            if fenced is not None:
                self._context.push(
                    consumer.client_id, fenced_push(self._subscription, consumer, self._context.leader_epoch, fenced)
                )
            del self._last_seen_at[name]
            self._unhandled.pop(name, None)
            self._context.observer.observe(events.ConsumerRemoved(reason=reason))

    def subscription_deleted(self) -> None:
        """Notify all consumers that the subscription was deleted. Its entry is already applied."""
        for consumer in self._subscription.consumers.values():
            fenced = fenced_push(
                self._subscription, consumer, self._context.leader_epoch, "the subscription was deleted"
            )
            self._context.push(consumer.client_id, fenced)
            self._context.observer.observe(events.ConsumerRemoved(reason="subscription_deleted"))

    def record_contact(self, name: str) -> bool:
        """Record contact with a registered consumer; return whether it was disconnected."""
        self._last_seen_at[name] = self._clock()
        consumer = self._subscription.consumers[name]
        if consumer.disconnected_at_ms is None:
            return False
        self._context.ledger.propose(
            e.ConsumerReconnected(**self._subscription.ids, consumer=name, incarnation=consumer.incarnation)
        )
        self._log.info("consumer.reconnected", consumer=name)
        self._context.observer.observe(events.ConsumerReconnected())
        return True

    def record_unhandled(self, request: Heartbeat) -> None:
        if request.unhandled or request.consumer in self._unhandled:
            self._unhandled[request.consumer] = request.unhandled

    def oldest_unhandled_ms(self) -> dict[int, int | None]:
        """Return external segment → when its oldest unhandled record arrived, as its holder says; None: it has none."""
        holdings, consumers = self._subscription.holdings, self._subscription.consumers
        return {
            segment: arrived_ms
            for name, said in self._unhandled.items()
            if consumers[name].disconnected_at_ms is None
            for segment, generation, arrived_ms in said
            if segment in holdings and holdings[segment].generation == generation
        }

    def client_disconnected(self, client_id: str, at: float) -> bool:
        """Start the grace periods of `MAX_DISCONNECTED` of the client's consumers that were not heard after ``at``.

        Return whether more are left.
        """
        # None if the client was replaced: its consumers are another client's.
        names = [name for name, consumer in self._subscription.consumers.items() if _is_connected(consumer, client_id)]
        unheard = sorted(name for name in names if self._last_seen_at[name] <= at)
        self._mark_disconnected(unheard[:MAX_DISCONNECTED])
        return len(unheard) > MAX_DISCONNECTED

    def client_connected(self, client_id: str) -> None:
        """Restart the heartbeat window of connected consumers. Disconnected ones must register again."""
        for name, consumer in self._subscription.consumers.items():
            if _is_connected(consumer, client_id):
                self._last_seen_at[name] = self._clock()

    def find_expired(self, now_ms: int) -> Sequence[str]:
        """Record who has become disconnected; return the names whose grace period has ended."""
        expired = find_expired(
            self._subscription.consumers,
            self._last_seen_at,
            now_seconds=self._clock(),
            now_ms=now_ms,
            heartbeat_interval_seconds=self._context.settings.heartbeat_interval_seconds,
            grace_seconds=self._context.settings.grace_seconds,
            lease_seconds=self._context.settings.lease_seconds,
        )
        self._mark_disconnected(expired.disconnected[:MAX_DISCONNECTED])  # The next tick marks the others.
        return expired.evicted

    def last_heard_age_ms(self) -> dict[str, int]:
        """Return the age of the last contact with each connected consumer; since this term began, if there was none."""
        now, consumers = self._clock(), self._subscription.consumers
        return {
            name: int((now - seen_at) * 1000)
            for name, seen_at in self._last_seen_at.items()
            if consumers[name].disconnected_at_ms is None
        }

    def _mark_disconnected(self, names: Sequence[str]) -> None:
        if not names:
            return
        consumers = self._subscription.consumers
        self._context.ledger.propose(
            *(
                e.ConsumerDisconnected(**self._subscription.ids, consumer=name, incarnation=consumers[name].incarnation)
                for name in names
            )
        )
        for name in names:
            self._last_seen_at[name] = self._clock()
            self._context.observer.observe(events.ConsumerDisconnected())
        self._log.info(
            "consumer.disconnected", consumers=list(names), grace_seconds=self._context.settings.grace_seconds
        )


def _is_connected(consumer: RegisteredConsumer, client_id: str) -> bool:
    return consumer.client_id == client_id and consumer.disconnected_at_ms is None
