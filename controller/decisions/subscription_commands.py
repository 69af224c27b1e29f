"""Decide commands about subscriptions: delete, seek, and change the order, while consumers run.

Pure. All entries of a command are in one chunk, so no half-done state exists.
"""

from __future__ import annotations

from typing import Final

from controller.decisions.handlers import Answer, Decision, command, done
from controller.decisions.lookup import find_subscription
from controller.state.shard_state import ShardState
from controller.state.topic import Topic
from coordinator.decisions.external_topics import seekable_ends
from coordinator.decisions.gate import compute_gate, is_gated
from coordinator.decisions.refusal import Refusal
from coordinator.decisions.registration import order_error
from coordinator.decisions.seek import SeekTarget, seek_positions
from coordinator.reporting.description import describe
from coordinator.reporting.steps import complete
from headgate.model import entries as e
from headgate.protocol import messages as m


def create_subscription(
    request: m.RegisterConsumer, topic: Topic, subscription_id: int, user: str
) -> e.SubscriptionCreated:
    """Return the entry that creates a subscription at the earliest record, or at the present end of each segment."""
    positions: dict[int, int] = {}
    if request.start == "latest":
        positions = {segment: tail.next_offset for segment, tail in topic.tails.items()}
    return e.SubscriptionCreated(
        topic_id=topic.topic_id,
        subscription_id=subscription_id,
        subscription=request.subscription,
        subscription_type=request.subscription_type,
        order=request.order or ("strict" if request.subscription_type == e.SubscriptionType.STREAM else "none"),
        balance=request.balance or "count",
        positions=positions,
        user=user,
    )


def delete_subscription(request: m.DeleteSubscription, state: ShardState) -> Decision | Refusal:
    """Delete a subscription. ``force`` is required while it has consumers."""
    if request.token in state.commands:
        return Decision((), done)
    found = find_subscription(request.topic, request.subscription, state)
    if isinstance(found, Refusal):
        return found
    topic, subscription = found
    if subscription.consumers and not request.force:
        names = ", ".join(sorted(subscription.consumers))
        return Refusal(
            "invalid", f"subscription {request.subscription!r} has consumers {names}: stop them, or use force"
        )
    entry = e.SubscriptionDeleted(
        topic_id=topic.topic_id,
        subscription_id=subscription.subscription_id,
        token=request.token,
    )
    return Decision((entry,), done)


def seek_subscription(request: m.SeekSubscription, state: ShardState) -> Decision | Refusal:
    """Move a subscription; coordinator.decisions.seek computes the positions and what is rejected."""
    found = find_subscription(request.topic, request.subscription, state)
    if isinstance(found, Refusal):
        return found
    topic, subscription = found
    if request.token in state.commands:
        return Decision((), _seek_answer(subscription.subscription_id, request))
    if subscription.type == e.SubscriptionType.CHECKPOINT:
        return _invalid(
            f"subscription {request.subscription!r} is of type CHECKPOINT: its consumers keep their own positions; "
            "start them with the positions they should have",
        )
    target = _requested_target(request)
    if isinstance(target, Refusal):
        return target
    if topic.external is not None and target == "latest":
        return _invalid(f"topic {topic.name!r} is external: only its source knows its end; seek to 'earliest'")
    positions = seek_positions(
        target,
        layout=topic.layout,
        ends=seekable_ends(subscription, topic),
        positions=subscription.positions,
        gated=is_gated(subscription.type, subscription.order),
    )
    if isinstance(positions, str):
        return _invalid(positions)
    if request.dry_run:
        moves = tuple((s, subscription.position(s), to) for s, to in positions.items())
        return Decision((), _seek_answer(subscription.subscription_id, request, moves))
    entry = e.SubscriptionSeek(
        topic_id=topic.topic_id,
        subscription_id=subscription.subscription_id,
        seek_generation=subscription.seek_generation + 1,
        positions=positions,
        token=request.token,
    )
    return Decision((entry,), _seek_answer(subscription.subscription_id, request))


def set_order(request: m.SetSubscriptionOrder, state: ShardState) -> Decision | Refusal:
    """Change the order of a subscription. Setting its present order again is allowed."""
    found = find_subscription(request.topic, request.subscription, state)
    if isinstance(found, Refusal):
        return found
    topic, subscription = found
    answer = _described(topic.topic_id, subscription.subscription_id)
    if request.token in state.commands:
        return Decision((), answer)
    if subscription.type is None:
        return _invalid(
            f"the type of subscription {request.subscription!r} is unknown so far: register a consumer first, with "
            "the order that the subscription should have",
        )
    reason = order_error(subscription.type, request.order)
    if reason is not None:
        return _invalid(reason)
    # The same order is written again: its token prevents a delayed copy of this command from undoing a later one.
    entry = e.SubscriptionConfigured(
        topic_id=topic.topic_id,
        subscription_id=subscription.subscription_id,
        subscription_type=subscription.type,
        order=request.order,
        balance=subscription.balance,
        token=request.token,
    )
    return Decision((entry,), answer)


def _requested_target(request: m.SeekSubscription) -> SeekTarget | Refusal:
    if (request.to is None) == (not request.positions):
        return _invalid("a seek needs either to ('earliest' or 'latest') or positions")
    if request.to is not None:
        return request.to
    positions = dict(request.positions)
    if len(positions) < len(request.positions):
        return _invalid("the positions name a segment twice")
    return positions


def _seek_answer(
    subscription_id: int,
    request: m.SeekSubscription,
    dry_moves: tuple[tuple[int, int, int], ...] | None = None,
) -> Answer:
    def answer(state: ShardState) -> m.AnyReplyBody:
        subscription = state.subscriptions[subscription_id]
        tails = state.topics_by_id[subscription.topic_id].tails
        moves = dry_moves or ()
        last = subscription.last_seek
        if dry_moves is None and last is not None and last.token == request.token:
            moves = last.moves
        return m.SeekReply(
            seek_generation=subscription.seek_generation,
            moves=[
                m.SegmentMove(segment=s, from_offset=before, to_offset=to, end_offset=tails[s].next_offset)
                for s, before, to in moves
                if s in tails
            ],
        )

    return answer


def _described(topic_id: int, subscription_id: int) -> Answer:
    def answer(state: ShardState) -> m.AnyReplyBody:
        topic, subscription = state.topics_by_id[topic_id], state.subscriptions[subscription_id]
        gate = compute_gate(topic.layout, subscription.drained, subscription.type, subscription.order)
        return m.SubscriptionReply(subscription=complete(describe(subscription, topic, gate)))

    return answer


def _invalid(reason: str) -> Refusal:
    return Refusal("invalid", reason, after_barrier=True)


COMMANDS: Final = (
    command(m.DeleteSubscription, delete_subscription),
    command(m.SeekSubscription, seek_subscription),
    command(m.SetSubscriptionOrder, set_order),
)
