"""Builds queries about external topics: the names and checkpoints that facts lack. Pure."""

from msgspec.structs import replace

from drain.protocol import ExternalBacklogQuery
from drain.table_mapping import ExternalView
from shard.state.shard_state import ShardState
from shard.state.topic import Topic


def external_view(topic: Topic) -> ExternalView | None:
    """Return the names of ``topic``; None if the topic is stored in the ledger."""
    if topic.external is None:
        return None
    return ExternalView(
        topic=topic.name,
        labels={number: segment.label or "" for number, segment in sorted(topic.layout.segments.items())},
        opaque=topic.external.positions == "opaque",
    )


def external_queries(state: ShardState) -> list[ExternalBacklogQuery]:
    queries: list[ExternalBacklogQuery] = []
    for topic in state.topics.values():
        if (view := external_view(topic)) is not None:
            checkpoints = {
                each.subscription_id: {segment: known.text for segment, known in each.progress.checkpoints.items()}
                for each in topic.subscriptions.values()
                if each.progress.checkpoints
            }
            queries.append(ExternalBacklogQuery(state.shard, topic.topic_id, replace(view, checkpoints=checkpoints)))
    return queries
