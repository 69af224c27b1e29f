"""Builds queries about external topics: the names and checkpoints that facts lack. Pure."""

from collections.abc import Iterable

from msgspec.structs import replace

from drain.protocol import ExternalBacklogQuery
from drain.table_mapping import ExternalView
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic


def external_view(topic: Topic, subscriptions: Iterable[Subscription]) -> ExternalView | None:
    """Return the names of ``topic`` and of these subscriptions; None if the topic is stored in the ledger."""
    if topic.external is None:
        return None
    by_id = sorted(subscriptions, key=lambda each: each.subscription_id)
    return ExternalView(
        topic=topic.name,
        subscriptions={each.subscription_id: each.name for each in by_id},
        labels={number: segment.label or "" for number, segment in sorted(topic.layout.segments.items())},
        opaque=topic.external.positions == "opaque",
    )


def external_queries(state: ShardState) -> list[ExternalBacklogQuery]:
    queries: list[ExternalBacklogQuery] = []
    for topic in state.topics.values():
        subscriptions = topic.subscriptions.values()
        view = external_view(topic, subscriptions)
        if view is not None:
            checkpoints = {
                each.subscription_id: {segment: known.text for segment, known in each.progress.checkpoints.items()}
                for each in subscriptions
                if each.progress.checkpoints
            }
            queries.append(ExternalBacklogQuery(state.shard, topic.topic_id, replace(view, checkpoints=checkpoints)))
    return queries
