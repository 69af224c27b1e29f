"""What the backlog process is told of external topics, because the ledger's facts do not tell it: names and marks.

Pure: state in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from controller.state.shard_state import ShardState, Topic
from coordinator.state.subscription import Subscription
from drain.external.table_mapping import ExternalView
from drain.protocol import ExternalBacklogQuery


def external_view(topic: Topic, subscriptions: Iterable[Subscription]) -> ExternalView | None:
    """Return the names of ``topic`` and of these subscriptions of it; None for a topic that is stored here."""
    if topic.external is None:
        return None
    found = sorted(subscriptions, key=lambda each: each.subscription_id)
    return ExternalView(
        topic=topic.name,
        subscriptions={each.subscription_id: each.name for each in found},
        labels={number: segment.label or "" for number, segment in sorted(topic.layout.segments.items())},
        opaque=topic.external.positions == "opaque",
    )


def external_queries(state: ShardState) -> list[ExternalBacklogQuery]:
    """Return the query about the backlog of each external topic of a shard, with all checkpoints."""
    found: list[ExternalBacklogQuery] = []
    for topic in state.topics.values():
        subscriptions = topic.subscriptions.values()
        names = external_view(topic, subscriptions)
        if names is not None:
            marks = {each.subscription_id: dict(each.checkpoints) for each in subscriptions if each.checkpoints}
            found.append(ExternalBacklogQuery(state.shard, topic.topic_id, replace(names, checkpoints=marks)))
    return found
