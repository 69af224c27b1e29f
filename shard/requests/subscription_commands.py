"""Decide commands about subscriptions: create, delete, seek, and change the order, while consumers run.

Pure. All entries of a command are in one chunk, so no half-done state exists.
"""

from typing import Final

from msgspec.structs import replace

from headgate.model import entries as e
from headgate.model.text import listed
from headgate.protocol import requests
from headgate.protocol.codec import Page, follows
from headgate.protocol.replies import AnyReplyBody, ParkedKeyList, SeekReply, SubscriptionReply
from headgate.protocol.request_fields import Start
from headgate.views.subscriptions import ParkedKeyInfo, SeekResult, SegmentSeek
from shard.reporting.description import describe
from shard.requests import handlers
from shard.requests.topic_commands import no_change
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic, TopicSnapshot
from shard.steps import Steps
from shard.subscriptions.gate import compute_gate, is_gated, tracks_acknowledgements
from shard.subscriptions.positions import SeekTarget, seek_positions, seekable_ends, start_error
from shard.subscriptions.refusal import Refusal, invalid
from shard.subscriptions.registration import default_order, order_error, subscriptions_error

SEGMENT_TWICE: Final = "the positions name a segment twice"


def new_subscription(
    request: requests.RegisterConsumer, topic: Topic, subscription_id: int, user: str
) -> e.SubscriptionCreated:
    """Return the entry by which the registration of its first consumer creates a subscription."""
    return e.SubscriptionCreated(
        topic_id=topic.topic_id,
        subscription_id=subscription_id,
        subscription=request.subscription,
        subscription_type=request.subscription_type,
        order=request.order or default_order(request.subscription_type),
        balance=request.balance or "count",
        positions=_start_positions(request.start, topic),
        user=user,
    )


def _start_positions(start: Start, topic: Topic) -> dict[int, int]:
    """Return the present end of each segment, or nothing for the earliest record."""
    return {} if start == "earliest" else {segment: tail.next_offset for segment, tail in topic.tails.items()}


def create_subscription(
    request: requests.CreateSubscription, state: ShardState, user: str
) -> handlers.Decision | Refusal:
    """Create a subscription without a consumer, as `new_subscription` does; one that exists is not changed."""
    topic = handlers.find_topic(request.topic, state)
    existing = topic.subscriptions.get(request.subscription)
    if existing is not None:
        is_repeated = request.token in state.commands
        if not is_repeated and not (request.if_absent and existing.type == request.subscription_type):
            return _exists(existing, request)
        entries = () if is_repeated else (no_change(topic, request.token),)
        return handlers.Decision(entries, _described(topic.topic_id, existing.subscription_id))
    if request.token in state.commands:
        return invalid(f"subscription {request.subscription!r} was created and has been deleted since")
    reason = start_error(topic, "latest" if request.positions else request.start) or subscriptions_error(
        topic.name, len(topic.subscriptions)
    )
    positions = _requested_start(request, topic)
    if reason is not None or isinstance(positions, str):
        return invalid(reason or str(positions))
    entry = e.SubscriptionCreated(
        topic_id=topic.topic_id,
        subscription_id=state.ids.next_id,
        subscription=request.subscription,
        subscription_type=request.subscription_type,
        order=default_order(request.subscription_type),
        positions=positions,
        user=user,
        token=request.token,
    )
    return handlers.Decision((entry,), _described(topic.topic_id, entry.subscription_id))


def _requested_start(request: requests.CreateSubscription, topic: Topic) -> dict[int, int] | str:
    """Return the positions of the new subscription, or what is wrong with those of the request; as for a seek."""
    if not request.positions:
        return _start_positions(request.start, topic)
    target = dict(request.positions)
    if len(target) < len(request.positions):
        return SEGMENT_TWICE
    return seek_positions(
        target,
        layout=topic.layout,
        ends={segment: tail.next_offset for segment, tail in topic.tails.items()},
        positions={},
        gated=is_gated(request.subscription_type, default_order(request.subscription_type)),
    )


def _exists(existing: Subscription, request: requests.CreateSubscription) -> Refusal:
    name = f"subscription {existing.name!r} of topic {existing.topic!r}"
    if request.if_absent:
        return invalid(
            f"{name} exists and is of type {existing.type}, not {request.subscription_type}: delete it first, or "
            "choose another name"
        )
    return invalid(f"{name} exists (type {existing.type}, order {existing.order}): seek moves it")


def delete_subscription(request: requests.DeleteSubscription, state: ShardState) -> handlers.Decision | Refusal:
    """Delete a subscription. ``force`` is required while it has consumers."""
    if request.token in state.commands:
        return handlers.Decision((), handlers.done)
    _, subscription = handlers.find_subscription(request.topic, request.subscription, state)
    if subscription.consumers and not request.force:
        names = listed(sorted(subscription.consumers))
        return Refusal(
            "invalid", f"subscription {request.subscription!r} has consumers {names}: stop them, or use force"
        )
    return handlers.Decision((e.SubscriptionDeleted(**subscription.ids, token=request.token),), handlers.done)


def seek_subscription(request: requests.SeekSubscription, state: ShardState) -> handlers.Decision | Refusal:
    """Move a subscription; shard.subscriptions.positions computes the positions and what is rejected."""
    topic, subscription = handlers.find_subscription(request.topic, request.subscription, state)
    if request.token in state.commands:
        return handlers.Decision((), _seek_answer(subscription.subscription_id, request))
    if subscription.type == e.SubscriptionType.CHECKPOINT:
        return invalid(
            f"subscription {request.subscription!r} is of type CHECKPOINT: its consumers keep their own positions; "
            "start them with the positions they should have"
        )
    target = _requested_target(request)
    if isinstance(target, Refusal):
        return target
    if topic.external is not None and target == "latest":
        return invalid(f"topic {topic.name!r} is external: only its source knows its end; seek to 'earliest'")
    positions = seek_positions(
        target,
        layout=topic.layout,
        ends=seekable_ends(subscription, topic),
        positions=subscription.progress.positions,
        gated=is_gated(subscription.type, subscription.order),
    )
    if isinstance(positions, str):
        return invalid(positions)
    if request.dry_run:
        moves = tuple((s, subscription.position(s), to) for s, to in positions.items())
        return handlers.Decision((), _seek_answer(subscription.subscription_id, request, moves))
    entry = e.SubscriptionSeek(
        **subscription.ids, seek_generation=subscription.seek_generation + 1, positions=positions, token=request.token
    )
    return handlers.Decision((entry,), _seek_answer(subscription.subscription_id, request))


def set_order(request: requests.SetSubscriptionOrder, state: ShardState) -> handlers.Decision | Refusal:
    """Change the order of a subscription. Setting its present order again is allowed."""
    topic, subscription = handlers.find_subscription(request.topic, request.subscription, state)
    answer = _described(topic.topic_id, subscription.subscription_id)
    if request.token in state.commands:
        return handlers.Decision((), answer)
    if subscription.type is None:
        return invalid(
            f"the type of subscription {request.subscription!r} is unknown so far: register a consumer first, with "
            "the order that the subscription should have"
        )
    reason = order_error(subscription.type, request.order)
    if reason is not None:
        return invalid(reason)
    # The same order is written again: its token prevents a delayed copy of this command from undoing a later one.
    entry = e.SubscriptionConfigured(
        **subscription.ids,
        subscription_type=subscription.type,
        order=request.order,
        balance=subscription.balance,
        token=request.token,
    )
    return handlers.Decision((entry,), answer)


def set_delivery_policy(request: requests.SetDeliveryPolicy, state: ShardState) -> handlers.Decision | Refusal:
    """Change the delivery policy of a subscription. The client checks that the dead-letter topic exists."""
    topic, subscription = handlers.find_subscription(request.topic, request.subscription, state)
    answer = _described(topic.topic_id, subscription.subscription_id)
    if request.token in state.commands:
        return handlers.Decision((), answer)
    given = {
        name: value for name in e.DeliveryPolicy.__struct_fields__ if (value := getattr(request, name)) is not None
    }
    policy = replace(subscription.redelivery.policy, **given)
    if topic.external is not None and given.keys() - {"max_processing_ms"}:
        return invalid(f"subscription {subscription.name!r} is of an external topic: only max_processing can be set")
    if not tracks_acknowledgements(subscription.type) and given.keys() - {"ignored_by_retention"}:
        return invalid(
            f"subscription {subscription.name!r} is of type {subscription.type}: only ignored-by-retention can be set"
        )
    if subscription.type != e.SubscriptionType.QUEUE and given.keys() & {"max_deliveries", "ack_timeout_ms"}:
        return invalid(
            f"subscription {subscription.name!r} is of type {subscription.type}: only a QUEUE delivers again, so only "
            "max_processing, ignored-by-retention and the dead-letter topic can be set"
        )
    if policy.max_deliveries and not policy.dead_letter_topic:
        return invalid("max_deliveries needs a dead-letter topic, to which a record goes after so many deliveries")
    if policy.dead_letter_topic == topic.name:
        return invalid(f"topic {topic.name!r} cannot be its own dead-letter topic: its dead records would come back")
    return handlers.Decision((e.DeliveryPolicySet(**subscription.ids, policy=policy, token=request.token),), answer)


def resume_key(request: requests.ResumeKey, state: ShardState) -> handlers.Decision | Refusal:
    """Begin to deliver the records of a parked key; with ``drop`` only those that are parked from now on."""
    topic, subscription = handlers.find_subscription(request.topic, request.subscription, state)
    if request.token in state.commands:
        return handlers.Decision((), handlers.done)
    key, known = request.key.decode(errors="backslashreplace"), subscription.redelivery.parked.keys.get(request.key)
    if known is None:
        see = f"see: headgate subscription parked {topic.name} {subscription.name}"
        return invalid(f"subscription {subscription.name!r} has not parked key {key!r}; {see}")
    if request.parking is not None:
        handlers.require_same(f"key {key!r}", request.parking, known.number, "parked again: it has number")
    entry = e.KeyResumed(**subscription.ids, key=request.key, dropped=request.drop, token=request.token)
    return handlers.Decision((entry,), handlers.done)


def list_parked_keys(request: requests.ListParkedKeys, state: ShardState) -> handlers.Decision:
    _, subscription = handlers.find_subscription(request.topic, request.subscription, state)
    page: Page[ParkedKeyInfo] = Page()
    parked = subscription.redelivery.parked
    for key, each in parked.keys.items():
        number = f"{each.number:020}"
        if request.key in (None, key) and follows(request.after, number):
            page.add(
                (number,),
                ParkedKeyInfo(
                    key=key,
                    since_ms=each.since_ms,
                    records=each.records,
                    reason=each.reason,
                    dead_letter_topic=each.topic,
                    is_resuming=key in parked.resuming,
                    finished=each.resumed,
                    parking=each.number,
                ),
            )
        if page.is_full:
            break
    return handlers.Decision((), lambda _: ParkedKeyList(keys=page.items, next=page.following))


def _requested_target(request: requests.SeekSubscription) -> SeekTarget | Refusal:
    if (request.to is None) == (not request.positions):
        return invalid("a seek needs either to ('earliest' or 'latest') or positions")
    if request.to is not None:
        return request.to
    positions = dict(request.positions)
    return invalid(SEGMENT_TWICE) if len(positions) < len(request.positions) else positions


def _seek_answer(
    subscription_id: int, request: requests.SeekSubscription, dry_moves: tuple[tuple[int, int, int], ...] = ()
) -> handlers.Answer:
    def answer(state: ShardState) -> AnyReplyBody:
        subscription = state.subscriptions[subscription_id]
        tails = state.topics_by_id[subscription.topic_id].tails
        last = subscription.progress.last_seek
        moves = last.moves if last is not None and last.token == request.token else dry_moves
        result = SeekResult(
            seek_generation=subscription.seek_generation,
            moves=tuple(
                SegmentSeek(segment=s, from_offset=before, to_offset=to, end_offset=tails[s].next_offset)
                for s, before, to in moves
                if s in tails
            ),
        )
        return SeekReply(result=result)

    return answer


def _described(topic_id: int, subscription_id: int) -> handlers.Answer:
    def answer(state: ShardState) -> handlers.Stepwise:
        topic = TopicSnapshot.of(state.topics_by_id[topic_id])
        return handlers.Stepwise(_describe(topic, state.subscriptions[subscription_id].snapshot()))

    return answer


def _describe(topic: TopicSnapshot, subscription: Subscription) -> Steps[handlers.StepResult]:
    gate = compute_gate(topic.layout, subscription.drained, subscription.type, subscription.order)
    return SubscriptionReply(subscription=(yield from describe(subscription, topic, gate)))


COMMANDS: Final = (
    handlers.user_command(requests.CreateSubscription, create_subscription),
    handlers.command(requests.DeleteSubscription, delete_subscription),
    handlers.command(requests.SeekSubscription, seek_subscription),
    handlers.command(requests.SetSubscriptionOrder, set_order),
    handlers.command(requests.SetDeliveryPolicy, set_delivery_policy),
    handlers.command(requests.ListParkedKeys, list_parked_keys),
    handlers.command(requests.ResumeKey, resume_key),
)
