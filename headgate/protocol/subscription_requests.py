"""Requests about a subscription that a person or a script sends: questions and commands.

Those of its consumers are in headgate.protocol.requests.
"""

from typing import Annotated

from msgspec import Meta

from headgate.model.entries import Order, SubscriptionType
from headgate.protocol.request_fields import (
    MAX_DELIVERIES,
    DelayMs,
    ListRequest,
    Name,
    Natural,
    ParkedKeyBytes,
    Start,
    SubscriptionRequest,
    Token,
)


class ListSubscriptions(ListRequest, frozen=True, tag="list_subscriptions"):
    """List the subscriptions of one topic, or of the whole shard."""

    topic: Name | None = None


class DescribeBacklog(ListRequest, frozen=True, tag="describe_backlog"):
    """Report the unacknowledged records of one subscription, of one topic, or of the whole shard."""

    topic: Name | None = None
    subscription: Name | None = None


class DescribeSubscription(SubscriptionRequest, frozen=True, tag="describe_subscription"):
    """Describe who reads which segment, and which ancestors block the others."""


class ExplainSubscription(SubscriptionRequest, frozen=True, tag="explain_subscription"):
    """Explain the assignment of one segment, of one consumer, or of the whole subscription."""

    segment: Natural | None = None
    consumer: Name | None = None


class PlanChanges(SubscriptionRequest, frozen=True, tag="plan_changes"):
    """Report which segments would move if the layout or the consumers changed. Changes nothing.

    Applied in this order: splits, merges, added consumers, removed consumers.
    """

    splits: Annotated[list[Natural], Meta(max_length=100)] = []
    merges: Annotated[list[tuple[Natural, Natural]], Meta(max_length=100)] = []
    add_consumers: Annotated[list[Name], Meta(max_length=1000)] = []
    remove_consumers: Annotated[list[Name], Meta(max_length=1000)] = []


class CreateSubscription(SubscriptionRequest, frozen=True, tag="create_subscription"):
    """Create a subscription before its first consumer registers.

    It starts at ``start``, or at ``positions``, (segment, offset) pairs: the first record of any other
    segment. ``if_absent``: one that exists and has this type is no error, and stays as it is.
    """

    subscription_type: SubscriptionType
    token: Token
    start: Start = "latest"
    positions: Annotated[list[tuple[Natural, Natural]], Meta(max_length=4096)] = []
    if_absent: bool = False


class DeleteSubscription(SubscriptionRequest, frozen=True, tag="delete_subscription"):
    """Delete a subscription. ``force`` is required while it has consumers."""

    token: Token
    force: bool = False


class EvictConsumer(SubscriptionRequest, frozen=True, tag="evict_consumer"):
    """Remove a consumer as if its grace period had ended. The running program must not register again."""

    consumer: Name
    token: Token


class SeekSubscription(SubscriptionRequest, frozen=True, tag="seek_subscription"):
    """Move a subscription while its consumers run.

    Give exactly one of ``to`` and ``positions``, which holds (segment, offset) pairs. ``dry_run``:
    report the moves and change nothing.
    """

    token: Token
    to: Start | None = None
    positions: Annotated[list[tuple[Natural, Natural]], Meta(max_length=4096)] = []
    dry_run: bool = False


class SetSubscriptionOrder(SubscriptionRequest, frozen=True, tag="set_subscription_order"):
    """Make children wait for their ancestors (``strict``) or not (``none``), from now on."""

    order: Order
    token: Token


class SetDeliveryPolicy(SubscriptionRequest, frozen=True, tag="set_delivery_policy"):
    """Change what happens to records that a subscription has not acknowledged. None leaves a field as it is.

    ``max_deliveries`` 0, ``ack_timeout_ms`` 0 and an empty ``dead_letter_topic`` switch each of them off; the first two
    are for a QUEUE. ``max_deliveries`` requires a dead-letter topic. ``max_processing_ms`` 0: no limit. A CHECKPOINT
    subscription has only ``ignored_by_retention``.
    """

    token: Token
    max_deliveries: Annotated[int, Meta(ge=0, le=MAX_DELIVERIES)] | None = None
    ack_timeout_ms: DelayMs | None = None
    dead_letter_topic: Annotated[str, Meta(max_length=100)] | None = None
    max_processing_ms: DelayMs | None = None
    ignored_by_retention: bool | None = None


class ListParkedKeys(ListRequest, frozen=True, tag="list_parked_keys"):
    """List the parked keys of a STREAM, in the order in which they were parked; or one of them."""

    topic: Name
    subscription: Name
    key: ParkedKeyBytes | None = None


class ResumeKey(SubscriptionRequest, frozen=True, tag="resume_key"):
    """Deliver the records of a parked key in order, before newer ones. ``drop``: without those that are parked now."""

    key: ParkedKeyBytes
    token: Token
    drop: bool = False
