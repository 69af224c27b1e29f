"""Decide commands about topics, subscriptions and producer identities.

Pure: each decision returns the entries to write and how to build the reply once they are applied. A
command carries a token. A command that was executed before gets its reply again and is not executed
twice. A split or merge is one entry, so no half-done state exists.
"""

from __future__ import annotations

from typing import Final, get_args

import msgspec

from controller.decisions.handlers import Answer, Decision, command
from controller.state.shard_state import ShardState, Topic
from coordinator.decisions.refusal import Refusal
from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.external_topic import ExternalTopic
from headgate.protocol import messages as m

LAST_PRODUCER_EPOCH = 2**31 - 1
"""An identity that has used all its epochs gets a new id. The epoch never wraps (librdkafka #3720)."""
MAX_SEGMENTS = 4096
"""Limit for the segments of a layout, including sealed ones, so that one topic cannot exhaust the shard's memory."""


def open_producer(request: m.OpenProducer, state: ShardState) -> Decision | Refusal:
    """Return a producer identity (the table of KIP-360, with a token instead of its "last epoch").

    * The token of the current incarnation: the same reply again, regardless of the other fields.
    * The token of an earlier incarnation: fenced. It is a delayed copy and must not fence a later
      incarnation.
    * A name: its next incarnation, which fences the previous one.
    * An id, alone or with a name, at its current epoch: the next epoch. An id that is not the
      name's, or any other epoch: fenced. Its sender is a stale producer, even if that id was
      forgotten and the epoch numbers match.
    * An unknown name or id, or no epochs left: a new id at epoch 0.
    """
    known_id = request.producer_id if request.name is None else state.producer_names.get(request.name)
    known = state.producers.get(known_id) if known_id is not None else None
    if known is None:
        return _opened(state.next_id, 0, request)
    if known.token == request.token:
        return Decision((), _identity(known.producer_id))
    if request.token in known.earlier_tokens:
        return Refusal(
            "fenced",
            f"this open request of producer {known.producer_id} is outdated: the producer is at epoch "
            f"{known.producer_epoch}",
            after_barrier=True,
        )
    current = known.producer_id, known.producer_epoch
    if request.producer_id is not None and (request.producer_id, request.producer_epoch) != current:
        return Refusal(
            "fenced",
            f"producer {known.producer_id} is at epoch {known.producer_epoch}; this request is for epoch "
            f"{request.producer_epoch} of producer {request.producer_id}",
            after_barrier=True,
        )
    if known.producer_epoch >= LAST_PRODUCER_EPOCH:
        return _opened(state.next_id, 0, request)
    return _opened(known.producer_id, known.producer_epoch + 1, request)


def _opened(producer_id: int, producer_epoch: int, request: m.OpenProducer) -> Decision:
    entry = e.ProducerOpened(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        token=request.token,
        name=request.name,
    )
    return Decision((entry,), _identity(producer_id))


def _identity(producer_id: int) -> Answer:
    def answer(state: ShardState) -> m.AnyReplyBody:
        producer = state.producers[producer_id]
        return m.ProducerIdentity(
            producer_id=producer_id,
            producer_epoch=producer.producer_epoch,
            source_position=producer.source_position,
        )

    return answer


def create_topic(request: m.CreateTopic, state: ShardState) -> Decision | Refusal:
    """Create a topic. An existing name is rejected, unless this command created it."""
    if request.token in state.commands and request.topic in state.topics:
        return Decision((), _describe(request.topic))
    if request.topic in state.topics:
        return Refusal("invalid", f"topic {request.topic!r} already exists", after_barrier=True)
    entry = e.TopicCreated(
        topic_id=state.next_id,
        topic=request.topic,
        segments=request.segments,
        token=request.token,
    )
    return Decision((entry,), _describe(request.topic))


def delete_topic(request: m.DeleteTopic, state: ShardState) -> Decision | Refusal:
    """Delete a topic. ``force`` is required while consumers use it."""
    if request.token in state.commands:
        return Decision((), _done)
    topic = state.topics.get(request.topic)
    if topic is None:
        return no_topic(request.topic, state)
    users = sorted(
        f"{subscription.name} ({', '.join(sorted(subscription.consumers))})"
        for subscription in topic.subscriptions.values()
        if subscription.consumers
    )
    if users and not request.force:
        return Refusal("invalid", f"topic {request.topic!r} is in use by {'; '.join(users)}: stop them, or use force")
    return Decision((e.TopicDeleted(topic_id=topic.topic_id, token=request.token),), _done)


def split_segment(request: m.SplitSegment, state: ShardState) -> Decision | Refusal:
    """Split a segment at the middle of its range."""
    topic = state.topics.get(request.topic)
    if topic is None:
        return no_topic(request.topic, state)
    if request.token in state.commands:
        return Decision((), _describe(request.topic))
    entry = split_entry(topic, request.segment, token=request.token)
    return entry if isinstance(entry, Refusal) else Decision((entry,), _describe(request.topic))


def split_entry(
    topic: Topic, segment: int, *, token: str, reason: str = "", max_segments: int = MAX_SEGMENTS
) -> e.SegmentSplit | Refusal:
    """Return the entry that splits ``segment``. An automatic split has a ``reason`` and an empty ``token``."""
    if topic.external is not None:
        return _refuse_external(topic)
    try:
        topic.layout.split(segment, 0, 0)
    except LayoutError as error:
        return Refusal("invalid", str(error), after_barrier=True)
    if len(topic.layout.segments) + 2 > max_segments:
        return _refuse_segment_limit(topic, max_segments)
    return e.SegmentSplit(
        topic_id=topic.topic_id,
        segment=segment,
        end_offset=topic.tails[segment].next_offset,
        token=token,
        reason=reason,
    )


def merge_segments(request: m.MergeSegments, state: ShardState) -> Decision | Refusal:
    """Merge two adjacent segments."""
    topic = state.topics.get(request.topic)
    if topic is None:
        return no_topic(request.topic, state)
    if request.token in state.commands:
        return Decision((), _describe(request.topic))
    entry = merge_entry(topic, *request.segments, token=request.token)
    return entry if isinstance(entry, Refusal) else Decision((entry,), _describe(request.topic))


def merge_entry(
    topic: Topic, first: int, second: int, *, token: str, reason: str = "", max_segments: int = MAX_SEGMENTS
) -> e.SegmentsMerged | Refusal:
    """Return the entry that merges two segments. An automatic merge has a ``reason`` and an empty ``token``."""
    if topic.external is not None:
        return _refuse_external(topic)
    try:
        topic.layout.merge(first, second, {first: 0, second: 0}, 0)
    except LayoutError as error:
        return Refusal("invalid", str(error), after_barrier=True)
    if len(topic.layout.segments) + 1 > max_segments:
        return _refuse_segment_limit(topic, max_segments)
    return e.SegmentsMerged(
        topic_id=topic.topic_id,
        segments=(first, second),
        end_offsets=(topic.tails[first].next_offset, topic.tails[second].next_offset),
        token=token,
        reason=reason,
    )


def set_topic_policy(request: m.SetTopicPolicy, state: ShardState) -> Decision | Refusal:
    """Set the given fields of a topic's policy, and reset others to the cluster's settings."""
    topic = state.topics.get(request.topic)
    if topic is None:
        return no_topic(request.topic, state)
    if request.token in state.commands:
        return Decision((), _describe(request.topic))
    given = {field: value for field in get_args(m.PolicyField) if (value := getattr(request, field)) is not None}
    if both := sorted(given.keys() & set(request.reset)):
        return Refusal("invalid", f"{', '.join(both)}: give a value or reset it, not both")
    if topic.external is not None and (given.get("auto_split") or given.get("auto_merge")):
        return _refuse_external(topic)
    policy = msgspec.structs.replace(topic.policy, **{**dict.fromkeys(request.reset), **given})
    fewest, most = policy.min_segments, policy.max_segments
    if fewest is not None and most is not None and fewest > most:
        return Refusal("invalid", f"min_segments {fewest} is above max_segments {most}")
    entry = e.TopicPolicySet(topic_id=topic.topic_id, policy=policy, token=request.token)
    return Decision((entry,), _describe(request.topic))


def create_subscription(request: m.RegisterConsumer, topic: Topic, subscription_id: int) -> e.SubscriptionCreated:
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
    )


def delete_subscription(request: m.DeleteSubscription, state: ShardState) -> Decision | Refusal:
    """Delete a subscription. ``force`` is required while it has consumers."""
    if request.token in state.commands:
        return Decision((), _done)
    topic = state.topics.get(request.topic)
    if topic is None:
        return no_topic(request.topic, state)
    subscription = topic.subscriptions.get(request.subscription)
    if subscription is None:
        return no_subscription(request.subscription, topic)
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
    return Decision((entry,), _done)


def list_topics(_: m.ListTopics, __: ShardState) -> Decision:
    """List every topic of the shard."""
    return Decision(
        (),
        lambda state: m.TopicList(topics=[describe(topic, state.shard) for _, topic in sorted(state.topics.items())]),
    )


def describe_topic(request: m.DescribeTopic, state: ShardState) -> Decision | Refusal:
    """Describe one topic."""
    return Decision((), _describe(request.topic)) if request.topic in state.topics else no_topic(request.topic, state)


def describe(topic: Topic, shard: int) -> m.TopicDescription:
    """Return the description of ``topic``."""
    return m.TopicDescription(
        topic=topic.name,
        topic_id=topic.topic_id,
        shard=shard,
        layout_epoch=topic.layout.layout_epoch,
        segments=[
            m.SegmentDescription(
                segment=segment.segment_id,
                first_hash=segment.first_hash,
                last_hash=segment.last_hash,
                state=segment.state.value,
                parents=list(segment.parents),
                children=list(segment.children),
                next_offset=topic.tails[segment.segment_id].next_offset,
                size_bytes=topic.tails[segment.segment_id].size_bytes,
                created_at_ms=segment.created_at_ms,
                sealed_at_ms=segment.sealed_at_ms,
                label=segment.label,
            )
            for _, segment in sorted(topic.layout.segments.items())
        ],
        subscriptions=sorted(topic.subscriptions),
        policy=topic.policy,
        external=None if topic.external is None else _source_of(topic.external),
    )


def _source_of(external: ExternalTopic) -> m.ExternalDescription:
    return m.ExternalDescription(source=external.source, positions=external.positions, hash_bits=external.hash_bits)


def no_subscription(name: str, topic: Topic) -> Refusal:
    """Return a refusal that lists the existing subscriptions."""
    known = ", ".join(sorted(topic.subscriptions)) or "none"
    return Refusal("invalid", f"topic {topic.name!r} has no subscription {name!r}; it has: {known}", after_barrier=True)


def no_topic(name: str, state: ShardState) -> Refusal:
    """Return a refusal that lists some of the existing topics."""
    known = ", ".join(sorted(state.topics)[:10])
    hint = f"; this shard has: {known}" if known else ""
    return Refusal("invalid", f"there is no topic {name!r}{hint}", after_barrier=True)


def _refuse_external(topic: Topic) -> Refusal:
    return Refusal(
        "invalid",
        f"topic {topic.name!r} is external: split or merge at its source, then import it again "
        f"(headgate topic import {topic.name} FILE)",
        after_barrier=True,
    )


def _refuse_segment_limit(topic: Topic, max_segments: int) -> Refusal:
    return Refusal(
        "invalid", f"topic {topic.name!r} holds {len(topic.layout.segments)} segments; the limit is {max_segments}"
    )


def _describe(name: str) -> Answer:
    return lambda state: m.TopicReply(topic=describe(state.topics[name], state.shard))


def _done(_: ShardState) -> m.AnyReplyBody:
    return m.Done()


COMMANDS: Final = (
    command(m.OpenProducer, open_producer),
    command(m.CreateTopic, create_topic),
    command(m.DeleteTopic, delete_topic),
    command(m.SplitSegment, split_segment),
    command(m.MergeSegments, merge_segments),
    command(m.SetTopicPolicy, set_topic_policy),
    command(m.ListTopics, list_topics),
    command(m.DescribeTopic, describe_topic),
    command(m.DeleteSubscription, delete_subscription),
)
