"""Combines what each daemon knows to one overview of the cluster. Pure.

1. A topic belongs to the daemon that leads its shard. If two claim a shard, as for a moment after a
   change of leader, the one with the higher leader epoch has it.
2. A daemon that does not answer is listed as ``unreachable``, and the overview is not complete.
3. A total is unknown if a part of it is; a total rate sums the known rates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headgate.views.cluster import ClusterTotals, FeatureLevel, ShardInfo, SubscriptionSummary
from web.access import RefusedError
from web.api import documents
from web.api.history import known_sum, merged_history

TopicOrder = Literal["name", "activity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Topics are sorted by name, subscriptions by topic and name."""

    cluster: documents.ClusterDocument
    daemons: tuple[documents.DaemonDocument, ...]
    topics: tuple[documents.TopicSummary, ...]
    subscriptions: tuple[SubscriptionSummary, ...]


def merged(
    cluster: str,
    daemon: str,
    as_of_ms: int,
    shards: int,
    parts: Sequence[documents.DaemonPart],
    feature_level: FeatureLevel | None = None,
) -> Overview:
    leaders = _leaders(parts)
    topics: list[documents.TopicSummary] = []
    subscriptions: list[SubscriptionSummary] = []
    for part in parts:
        own = {each.topic: each for each in part.topics if leaders.get(each.shard, (0, ""))[1] == part.daemon.daemon}
        topics += own.values()
        subscriptions += (each for each in part.subscriptions if each.topic in own)
    topics.sort(key=lambda each: each.topic)
    subscriptions.sort(key=lambda each: (each.topic, each.subscription))
    daemons = tuple(sorted((part.daemon for part in parts), key=lambda each: each.daemon))
    document = documents.ClusterDocument(
        cluster=cluster,
        daemon=daemon,
        as_of_ms=as_of_ms,
        feature_level=feature_level,
        complete=len(leaders) == shards and all(each.state != "unreachable" for each in daemons),
        shards=tuple(_shard(shard, parts, leaders.get(shard)) for shard in range(shards)),
        degraded=tuple(_degraded(daemons)),
        totals=_totals(len(daemons), topics, subscriptions),
        history=merged_history([each.history for each in daemons]),
    )
    return Overview(cluster=document, daemons=daemons, topics=tuple(topics), subscriptions=tuple(subscriptions))


def _totals(
    daemons: int, topics: Sequence[documents.TopicSummary], subscriptions: Sequence[SubscriptionSummary]
) -> ClusterTotals:
    return ClusterTotals(
        daemons=daemons,
        topics=len(topics),
        subscriptions=len(subscriptions),
        active_segments=sum(each.active_segments for each in topics),
        sealed_segments=sum(each.sealed_segments for each in topics),
        blocked_segments=sum(each.blocked_segments for each in subscriptions),
        connected_consumers=sum(each.connected_consumers for each in subscriptions),
        disconnected_consumers=sum(each.disconnected_consumers for each in subscriptions),
        stored_per_second=known_sum(each.stored_per_second for each in topics) or 0.0,
        acknowledged_per_second=known_sum(each.acknowledged_per_second for each in subscriptions),
        backlog_records=total_backlog(subscriptions),
        blocked_since_ms=min(
            (each.blocked_since_ms for each in subscriptions if each.blocked_since_ms is not None), default=None
        ),
    )


def total_backlog(subscriptions: Iterable[SubscriptionSummary]) -> int | None:
    """Return the backlog of all ``subscriptions`` that acknowledge; None: that of one is unknown."""
    backlogs = [each.backlog_records for each in subscriptions if each.outlook != "not_tracked"]
    return None if None in backlogs else sum(each for each in backlogs if each is not None)


def ordered_topics(topics: Iterable[documents.TopicSummary], order: TopicOrder) -> list[documents.TopicSummary]:
    """Return ``topics`` by name, or the busiest first: blocked ones, then rate, then backlog."""
    if order == "name":
        return sorted(topics, key=lambda each: each.topic)
    return sorted(
        topics,
        key=lambda each: (
            each.blocked_segments == 0,
            -(each.stored_per_second or 0.0),
            -(each.backlog_records or 0),
            each.topic,
        ),
    )


def _leaders(parts: Iterable[documents.DaemonPart]) -> dict[int, tuple[int, str]]:
    """Return shard → (leader epoch, daemon) for the shards that a daemon says it leads."""
    found: dict[int, tuple[int, str]] = {}
    for part in parts:
        for shard in part.daemon.shards:
            if shard.role == "leading":
                found[shard.shard] = max(found.get(shard.shard, (0, "")), (shard.leader_epoch, part.daemon.daemon))
    return found


def _shard(shard: int, parts: Iterable[documents.DaemonPart], leader: tuple[int, str] | None) -> ShardInfo:
    seen = [each for part in parts for each in part.daemon.shards if each.shard == shard]
    return ShardInfo(
        shard=shard,
        daemon=None if leader is None else leader[1],
        leader_epoch=max((each.leader_epoch for each in seen), default=0),
        head_chunk=max((each.head_chunk for each in seen), default=0),
    )


def _degraded(daemons: Iterable[documents.DaemonDocument]) -> Iterable[documents.DegradedPart]:
    for daemon in daemons:
        if daemon.state == "unreachable":
            yield documents.DegradedPart(
                daemon=daemon.daemon, component="daemon", state="failed", reason=daemon.problem
            )
        for each in daemon.components:
            if each.state != "ok":
                yield documents.DegradedPart(
                    daemon=daemon.daemon, component=each.component, state=each.state, reason=each.reason
                )


class UnknownNameError(RefusedError):
    """There is no such topic or subscription."""

    status = 404


class NotAnsweredError(RefusedError):
    """The daemon that leads the shard did not answer, or no daemon leads it."""

    status = 503


class StatusSource(Protocol):
    """Answers for the whole cluster, or with ``own`` for what this daemon leads."""

    async def overview(self) -> Overview:
        """Return what all daemons know; may be a few seconds old."""

    async def part(self) -> documents.DaemonPart:
        """Return what this daemon knows."""

    async def topic(self, topic: str, *, own: bool) -> documents.TopicDocument:
        """Return one topic. Raises UnknownNameError or NotAnsweredError."""

    async def subscription(self, topic: str, subscription: str, *, own: bool) -> documents.SubscriptionDocument:
        """Return one subscription. Raises UnknownNameError or NotAnsweredError."""
