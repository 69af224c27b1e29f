"""Collects the status of this daemon as values: counts at once, documents over turns of the event loop."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from coordinator.subscription_coordinator import SubscriptionCoordinator
from headgate.model.layout import SegmentState
from headgate.protocol.backlog import estimate_drain
from headgate.views.cluster import MAX_BLOCKING_SEGMENTS, SubscriptionSummary
from headgate.views.subscriptions import BacklogInfo
from metrics.status import ShardCounts, ShardStatus
from shard.reporting.progress import unacknowledged
from shard.requests import topic_commands
from shard.state.subscription import Subscription
from shard.state.topic import Topic, TopicSnapshot
from shard.steps import Steps, parts
from shard.subscriptions.gate import Gate, tracks_acknowledgements
from web.api.documents import SubscriptionDocument, TopicDocument, TopicSummary
from web.api.overview import UnknownNameError, total_backlog

RATE_WINDOW_MS = 30_000
"""The rate of a topic is that of three slots of the traffic that the leader counts."""


def shard_statuses(controllers: Iterable[ShardController]) -> tuple[ShardStatus, ...]:
    return tuple(map(_shard, controllers))


async def summaries(leaders: Sequence[ShardLeader]) -> tuple[tuple[TopicSummary, ...], tuple[SubscriptionSummary, ...]]:
    """Return all topics and subscriptions of ``leaders`` in a line each, made over turns of the loop."""
    topics: list[TopicSummary] = []
    subscriptions: list[SubscriptionSummary] = []
    for leader in leaders:
        for name in sorted(leader.state.topics):
            if (topic := leader.state.topics.get(name)) is not None:  # Else it was deleted since the loop began.
                summary, own = await _topic_summary(leader, topic)
                topics.append(summary)
                subscriptions += own
    return tuple(topics), tuple(subscriptions)


async def _topic_summary(leader: ShardLeader, topic: Topic) -> tuple[TopicSummary, tuple[SubscriptionSummary, ...]]:
    own: list[SubscriptionSummary] = []
    counted = await _counted(leader, topic)
    stored = topic.external is None
    records, size_bytes, rate = await leader.driver.complete(_amounts(topic, leader.context.now_ms()))
    for subscription in list(topic.subscriptions.values()):
        coordinator = leader.subscription_registry.coordinators.get(subscription.subscription_id)
        if coordinator is not None:
            counts = counted.get(subscription.subscription_id)
            steps = _subscription_summary(leader, topic, subscription, coordinator, counts, rate if stored else None)
            own.append(await leader.driver.complete(steps))
    return TopicSummary(
        topic=topic.name,
        topic_id=topic.topic_id,
        shard=leader.state.shard,
        daemon=leader.context.instance,
        external=not stored,
        active_segments=topic.layout.active_count,
        sealed_segments=len(topic.layout.segments) - topic.layout.active_count,
        records=records if stored else None,
        size_bytes=size_bytes if stored else None,
        stored_per_second=rate if stored else None,
        subscriptions=len(own),
        connected_consumers=sum(each.connected_consumers for each in own),
        blocked_segments=sum(each.blocked_segments for each in own),
        backlog_records=total_backlog(own),
    ), tuple(own)


def _amounts(topic: Topic, now_ms: int) -> Steps[tuple[int, int, float]]:
    """Return records, bytes, and the rate over all segments; a segment sealed long ago adds nothing to it."""
    tails = dict(topic.tails)
    records = size_bytes = 0
    rate = 0.0
    for cost, some in parts(list(tails.values())):
        yield cost
        for tail in some:
            records += tail.next_offset
            size_bytes += tail.size_bytes
            rate += tail.traffic.rate(now_ms, RATE_WINDOW_MS).records
    return records, size_bytes, rate


async def _counted(leader: ShardLeader, topic: Topic) -> Mapping[int, BacklogInfo]:
    """Return the newest counts of Spark. Those of an external topic are its backlogs, so they are merged again."""
    if topic.external is None:
        return leader.backlogs.counted
    return await leader.backlogs.latest(lambda name, _: name == topic.name)


def _subscription_summary(
    leader: ShardLeader,
    topic: Topic,
    subscription: Subscription,
    coordinator: SubscriptionCoordinator,
    counted: BacklogInfo | None,
    stored_per_second: float | None,
) -> Steps[SubscriptionSummary]:
    """Summarize a subscription. ``stored_per_second``: of its topic, by the leader's count; None: Spark's applies."""
    yield coordinator.size
    reconciler = coordinator.reconciler
    backlog, draining = yield from _progress(subscription.snapshot(), TopicSnapshot.of(topic), reconciler.gate)
    stored = acknowledged = oldest_ms = None
    if counted is not None and counted.counted_by == "spark":
        stored, acknowledged = counted.stored_per_second, counted.acknowledged_per_second
        oldest_ms = counted.oldest_ms
        backlog = counted.records if topic.external is not None else backlog
    tracked = tracks_acknowledgements(subscription.type)
    outlook, seconds = estimate_drain(backlog, stored, acknowledged, tracked=tracked)
    return SubscriptionSummary(
        topic=topic.name,
        subscription=subscription.name,
        subscription_id=subscription.subscription_id,
        type=subscription.type,
        daemon=leader.context.instance,
        connected_consumers=coordinator.connected_consumers,
        disconnected_consumers=coordinator.consumers - coordinator.connected_consumers,
        blocked_segments=len(reconciler.gate.blocked),
        draining_segments=draining,
        blocked_since_ms=reconciler.blocked_since_ms,
        outlook=outlook,
        backlog_records=backlog if tracked else None,
        oldest_ms=oldest_ms if backlog else None,
        stored_per_second=stored if stored_per_second is None else stored_per_second,
        acknowledged_per_second=acknowledged,
        drained_in_seconds=seconds,
        unknown_reason="" if counted is None else counted.unknown_reason,
        blocking_segments=tuple(reconciler.blocking_segments()[:MAX_BLOCKING_SEGMENTS]),
    )


def _progress(subscription: Subscription, topic: TopicSnapshot, gate: Gate) -> Steps[tuple[int | None, int]]:
    """Return the backlog by the leader's own count, and the number of draining segments."""
    records: int | None = 0
    draining = 0
    for cost, some in parts(sorted(topic.layout.segments)):
        yield cost
        for segment in some:
            count = unacknowledged(subscription, topic, segment)
            records = None if records is None or count is None else records + count.records
            sealed = topic.layout.segments[segment].state is SegmentState.SEALED
            draining += sealed and segment not in gate.retired and segment not in gate.blocked
    return records, draining if tracks_acknowledgements(subscription.type) else 0


async def topic_document(leader: ShardLeader, name: str) -> TopicDocument:
    topic = _find(leader, name)
    summary, own = await _topic_summary(leader, topic)
    return TopicDocument(
        as_of_ms=leader.context.now_ms(),
        daemon=leader.context.instance,
        summary=summary,
        topic=topic_commands.describe(topic, leader.state.shard),
        subscriptions=own,
    )


async def subscription_document(leader: ShardLeader, name: str, subscription: str) -> SubscriptionDocument:
    """Return one subscription of topic ``name``. Raises UnknownNameError."""
    topic = _find(leader, name)
    found = topic.subscriptions.get(subscription)
    coordinator = None if found is None else leader.subscription_registry.coordinators.get(found.subscription_id)
    if found is None or coordinator is None:
        raise UnknownNameError(f"topic {name!r} has no subscription {subscription!r}")
    counted = (await _counted(leader, topic)).get(found.subscription_id)
    _, _, rate = await leader.driver.complete(_amounts(topic, leader.context.now_ms()))
    own = rate if topic.external is None else None
    summary = await leader.driver.complete(_subscription_summary(leader, topic, found, coordinator, counted, own))
    latest = await leader.backlogs.latest(lambda *each: each == (name, subscription))
    if (backlog := latest.get(found.subscription_id)) is None:
        raise UnknownNameError(f"subscription {subscription!r} of topic {name!r} has just been deleted")
    described = await leader.driver.complete(coordinator.describe())
    counts = {each.segment: each.records for each in backlog.segments}
    explanation = coordinator.explain_blocked(leader.context.drain_problem(), counts)
    return SubscriptionDocument(
        as_of_ms=leader.context.now_ms(),
        daemon=leader.context.instance,
        summary=summary,
        subscription=described,
        backlog=backlog,
        layout=topic_commands.describe(topic, leader.state.shard).segments,
        explanation=await leader.driver.complete(explanation),
    )


def _find(leader: ShardLeader, name: str) -> Topic:
    topic = leader.state.topics.get(name)
    if topic is None:
        raise UnknownNameError(f"there is no topic {name!r}")
    return topic


def _counts(leader: ShardLeader) -> ShardCounts:
    layouts = [topic.layout for topic in leader.state.topics.values()]
    subscriptions = leader.state.subscriptions.values()
    coordinators = leader.subscription_registry.coordinators.values()
    active, connected = sum(each.active_count for each in layouts), sum(c.connected_consumers for c in coordinators)
    deliveries = sum(filter(None, (c.deliveries.counts() for c in coordinators)), Counter())
    return ShardCounts(
        **deliveries,
        active_segments=active,
        sealed_segments=sum(len(each.segments) for each in layouts) - active,
        blocked_segments=sum(len(c.reconciler.gate.blocked) for c in coordinators),
        connected_consumers=connected,
        consumers_in_grace=sum(c.consumers for c in coordinators) - connected,
        longest_blocked_seconds=max((c.longest_blocked_seconds for c in coordinators), default=0.0),
        parked_keys=sum(len(each.redelivery.parked.keys) for each in subscriptions),
    )


def _shard(controller: ShardController) -> ShardStatus:
    leader = controller.leader
    role = controller.leadership.role.value
    if leader is None:
        return ShardStatus(
            shard=controller.shard,
            role=role,
            leader_epoch=controller.follower.end.leader_epoch,
            head_chunk=controller.follower.end.chunk,
            fault=controller.follower.fault or "",
            keeps_state=controller.follower.keeps_state,
            replay_lag_seconds=controller.follower.lag_seconds,
        )
    state, commit = leader.state, leader.commit
    return ShardStatus(
        shard=controller.shard,
        role=role,
        leader_epoch=leader.leader_epoch,
        head_chunk=commit.durable,
        producers=len(state.producers),
        named_producers=state.producers.named,
        in_flight_batches=commit.queued_batches,
        waiting_requests=len(leader.outcomes.waiting),
        queue_bytes=commit.queued_bytes,
        counts=_counts(leader),
    )
