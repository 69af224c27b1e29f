"""Decide commands about topics and their segments. Pure.

A command that was executed before (same token) gets its reply again and is not executed twice. A
split or merge is one entry, so no half-done state exists.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.layout import Layout, ShardMap
from headgate.model.text import listed
from headgate.protocol import requests
from headgate.protocol.codec import cut_page, follows
from headgate.protocol.replies import TopicList, TopicPlace, TopicReply
from headgate.views.topics import ExternalSource, SegmentInfo, TopicInfo
from shard.requests.handlers import Answer, Decision, command, done, find_topic, user_command
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from shard.subscriptions.refusal import Refusal, invalid

MAX_SEGMENTS = 4096
"""Limit for the segments of a layout, including sealed ones, so that one topic cannot exhaust the shard's memory."""


def create_topic(request: requests.CreateTopic, state: ShardState, user: str) -> Decision | Refusal:
    """Create a topic of ``user``. An existing name is rejected, unless this command created it."""
    if request.token in state.commands:
        return repeated(request.topic, state, _describe(request.topic))
    if request.topic in state.topics:
        return invalid(f"topic {request.topic!r} already exists")
    if (refusal := refuse_creation(request.topic, request.shards, state)) is not None:
        return refusal
    entry = e.TopicCreated(
        topic_id=state.ids.next_id, topic=request.topic, segments=request.segments, token=request.token, user=user
    )
    return Decision((entry,), _describe(request.topic))


def repeated(topic: str, state: ShardState, answer: Answer) -> Decision | Refusal:
    """Return the reply to a command that has created ``topic`` before; a late copy of it does not create it again."""
    if topic in state.topics:
        return Decision((), answer)
    return invalid(f"topic {topic!r} was created and has been deleted since; a new command needs a new token")


def delete_topic(request: requests.DeleteTopic, state: ShardState) -> Decision | Refusal:
    """Delete a topic. ``force`` is required while consumers use it."""
    if request.token in state.commands:
        return Decision((), done)
    topic = find_topic(request.topic, state)
    users = sorted(
        f"{subscription.name} ({listed(sorted(subscription.consumers))})"
        for subscription in topic.subscriptions.values()
        if subscription.consumers
    )
    if users and not request.force:
        return Refusal("invalid", f"topic {request.topic!r} is in use by {listed(users)}: stop them, or use force")
    return Decision((e.TopicDeleted(topic_id=topic.topic_id, token=request.token),), done)


def split_segment(request: requests.SplitSegment, state: ShardState) -> Decision | Refusal:
    return _change(request, state, lambda topic: split_entry(topic, request.segment, token=request.token))


def split_entry(
    topic: Topic, segment: int, *, token: str, reason: str = "", max_segments: int = MAX_SEGMENTS
) -> e.SegmentSplit | Refusal:
    """Return the entry that splits ``segment``. An automatic split has a ``reason`` and an empty ``token``."""
    refusal = _refuse_layout(topic, lambda: topic.layout.split(segment, 0, 0), max_segments)
    return refusal or e.SegmentSplit(
        topic_id=topic.topic_id,
        segment=segment,
        end_offset=topic.tails[segment].next_offset,
        token=token,
        reason=reason,
    )


def no_change(topic: Topic, token: str) -> e.TopicPolicySet:
    """Return the entry of a command that changed nothing. By its token, a late copy changes nothing, too."""
    return e.TopicPolicySet(topic_id=topic.topic_id, policy=topic.policy, token=token, changed=False)


def roll_entry(topic: Topic, segment: int, reason: str) -> e.SegmentRolled:
    """Return the entry that continues ``segment``, which is active, in a child of the same range."""
    end_offset = topic.tails[segment].next_offset
    return e.SegmentRolled(topic_id=topic.topic_id, segment=segment, end_offset=end_offset, reason=reason)


def merge_segments(request: requests.MergeSegments, state: ShardState) -> Decision | Refusal:
    return _change(request, state, lambda topic: merge_entry(topic, *request.segments, token=request.token))


def merge_entry(
    topic: Topic, first: int, second: int, *, token: str, reason: str = "", max_segments: int = MAX_SEGMENTS
) -> e.SegmentsMerged | Refusal:
    """Return the entry that merges two segments. An automatic merge has a ``reason`` and an empty ``token``."""
    ends = {first: 0, second: 0}
    refusal = _refuse_layout(topic, lambda: topic.layout.merge(first, second, ends, 0), max_segments)
    return refusal or e.SegmentsMerged(
        topic_id=topic.topic_id,
        segments=(first, second),
        end_offsets=(topic.tails[first].next_offset, topic.tails[second].next_offset),
        token=token,
        reason=reason,
    )


def set_topic_policy(request: requests.SetTopicPolicy, state: ShardState) -> Decision | Refusal:
    """Set the given fields of a topic's policy, and reset others to the cluster's settings."""
    return _change(request, state, lambda topic: _policy_entry(topic, request))


def _policy_entry(topic: Topic, request: requests.SetTopicPolicy) -> e.TopicPolicySet | Refusal:
    values = msgspec.structs.asdict(request.policy)
    given = {field: value for field, value in values.items() if value is not None}
    if both := sorted(given.keys() & set(request.reset)):
        return Refusal("invalid", f"{', '.join(both)}: give a value or reset it, not both")
    if topic.external is not None and (given.get("auto_split") or given.get("auto_merge")):
        return _refuse_external(topic)
    policy = msgspec.structs.replace(topic.policy, **dict.fromkeys(request.reset, None), **given)
    fewest, most = policy.min_segments, policy.max_segments
    if fewest is not None and most is not None and fewest > most:
        return Refusal("invalid", f"min_segments {fewest} is above max_segments {most}")
    return e.TopicPolicySet(topic_id=topic.topic_id, policy=policy, token=request.token)


def _change(
    request: requests.SplitSegment | requests.MergeSegments | requests.SetTopicPolicy,
    state: ShardState,
    entry_for: Callable[[Topic], e.AnyEntry | Refusal],
) -> Decision | Refusal:
    """Decide a command that changes an existing topic. A repeated one changes nothing."""
    topic = find_topic(request.topic, state)
    if request.token in state.commands:
        return Decision((), _describe(request.topic))
    entry = entry_for(topic)
    return entry if isinstance(entry, Refusal) else Decision((entry,), _describe(request.topic))


def _refuse_layout(topic: Topic, change: Callable[[], Layout], max_segments: int) -> Refusal | None:
    if topic.external is not None:
        return _refuse_external(topic)
    try:
        after = change()
    except LayoutError as error:
        return invalid(str(error))
    if len(after.segments) <= max_segments:
        return None
    count = len(topic.layout.segments)
    remedy = f"headgate topic prune {topic.name} removes those that every subscription has drained"
    return Refusal("invalid", f"topic {topic.name!r} holds {count} segments; the limit is {max_segments}: {remedy}")


def list_topics(request: requests.ListTopics, state: ShardState) -> Decision:
    topics, following = cut_page(
        ((name,), describe(topic, state.shard))
        for name, topic in sorted(state.topics.items())
        if follows(request.after, name)
    )
    return Decision((), lambda _: TopicList(topics=topics, next=following))


def describe(topic: Topic, shard: int) -> TopicInfo:
    source = topic.external
    return TopicInfo(
        topic=topic.name,
        topic_id=topic.topic_id,
        shard=shard,
        layout_epoch=topic.layout.layout_epoch,
        segments=tuple(
            SegmentInfo(
                segment=segment.segment_id,
                first_hash=segment.first_hash,
                last_hash=segment.last_hash,
                state=segment.state,
                parents=segment.parents,
                children=segment.children,
                next_offset=topic.tails[segment.segment_id].next_offset,
                size_bytes=topic.tails[segment.segment_id].size_bytes,
                created_at_ms=segment.created_at_ms,
                sealed_at_ms=segment.sealed_at_ms,
                label=segment.label,
            )
            for _, segment in sorted(topic.layout.segments.items())
        ),
        subscriptions=tuple(sorted(topic.subscriptions)),
        policy=topic.policy,
        user=topic.user,
        external=None
        if source is None
        else ExternalSource(source=source.source, positions=source.positions, hash_bits=source.hash_bits),
    )


def _refuse_external(topic: Topic) -> Refusal:
    return invalid(
        f"topic {topic.name!r} is external: split or merge at its source, then import it again "
        f"(headgate topic import {topic.name} FILE)"
    )


def _describe(name: str) -> Answer:
    return lambda state: TopicReply(topic=describe(state.topics[name], state.shard))


def find_place(request: requests.FindTopic, state: ShardState) -> Decision:
    """Say whether this shard has a topic. The answer leaves once everything is durable that it rests on."""
    topic = state.topics.get(request.topic)
    place = TopicPlace(topic_id=None if topic is None else topic.topic_id, shards=list(state.ids.shard_counts))
    return Decision((), lambda _: place)


def refuse_creation(topic: str, asked: Sequence[int], state: ShardState) -> Refusal | None:
    """Decide on which shard a name becomes a topic, once a cluster has more shards than before.

    Two shards must never have one name. The ledger of each shard has the numbers of shards, so this holds across
    leaders:

    1. A shard whose ledger has a longer list creates no topic for a client with a shorter one.
    2. A leader that knows a shorter list than the client creates nothing yet: the client repeats its request.
    3. A shard creates only names that belong to it by the present number. So if its ledger has the list and not a
       name of others, it never gets that, and `FindTopic` says so. A client creates a topic once all older places
       have said it.
    4. The entry that stores a list lets ids begin above all earlier ones, so a name that was deleted on one shard and
       created on another one has another id.

    Return why this shard, which has no such topic, does not create it for a client that knows the list ``asked``.
    """
    known = state.ids.shard_counts
    if len(asked) > max(1, len(known)):
        return Refusal("unavailable", f"shard {state.shard} has yet to store that the cluster has {asked[-1]} shards")
    if not known:
        return None
    if tuple(asked) != known:
        return Refusal("invalid", f"the cluster has {known[-1]} shards by now; a client that knows creates the topic")
    home = ShardMap(known).candidates(topic)[0]
    return None if home == state.shard else Refusal("invalid", f"topic {topic!r} belongs to shard {home}")


COMMANDS: Final = (
    user_command(requests.CreateTopic, create_topic),
    command(requests.DeleteTopic, delete_topic),
    command(requests.SplitSegment, split_segment),
    command(requests.MergeSegments, merge_segments),
    command(requests.SetTopicPolicy, set_topic_policy),
    command(requests.ListTopics, list_topics),
    command(requests.FindTopic, find_place),
)
