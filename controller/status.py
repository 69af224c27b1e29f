"""Collects the status of this daemon as values: counts at once, descriptions over turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.decisions import topic_commands
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from headgate.protocol.backlog import SubscriptionBacklog
from headgate.protocol.messages import SubscriptionDescription, TopicDescription
from metrics.status import DaemonStatus, ShardCounts, ShardStatus


def daemon_status(instance: str, cluster: str, controllers: Iterable[ShardController]) -> DaemonStatus:
    """Return the status without descriptions of topics, subscriptions and backlogs."""
    return DaemonStatus(
        instance=instance,
        cluster=cluster,
        shards=tuple(_shard(controller) for controller in controllers),
    )


async def described_status(instance: str, cluster: str, controllers: Sequence[ShardController]) -> DaemonStatus:
    """Return the status with descriptions. They are made one per turn of the loop, so each has its own moment."""
    shards: list[ShardStatus] = []
    for controller in controllers:
        leader = controller.leader
        if leader is not None:
            topics, subscriptions = await _descriptions(leader)
            backlogs = await leader.backlogs.latest()
            shards.append(replace(_shard(controller), topics=topics, subscriptions=subscriptions, backlogs=backlogs))
        else:
            shards.append(_shard(controller))
    return DaemonStatus(instance=instance, cluster=cluster, shards=tuple(shards))


async def current_backlogs(controllers: Sequence[ShardController], topic: str | None) -> list[SubscriptionBacklog]:
    """Return the backlogs on the led shards, of one topic or of all, by topic and subscription."""
    found: list[SubscriptionBacklog] = []
    for controller in controllers:
        if controller.leader is not None:
            found += await controller.leader.backlogs.latest(lambda name, _: topic in (None, name))
    return sorted(found, key=lambda each: (each.topic, each.subscription))


async def _descriptions(
    leader: ShardLeader,
) -> tuple[tuple[TopicDescription, ...], tuple[SubscriptionDescription, ...]]:
    topics: list[TopicDescription] = []
    for _, topic in sorted(leader.state.topics.items()):
        topics.append(topic_commands.describe(topic, leader.state.shard))
        await asyncio.sleep(0)
    subscriptions = [
        await leader.driver.complete(coordinator.describe_in_steps())
        for coordinator in list(leader.subscription_registry.coordinators)
    ]
    return tuple(topics), tuple(subscriptions)


def _counts(leader: ShardLeader) -> ShardCounts:
    layouts = [topic.layout for topic in leader.state.topics.values()]
    coordinators = leader.subscription_registry.coordinators
    active, connected = sum(each.active_count for each in layouts), sum(c.connected_consumers for c in coordinators)
    return ShardCounts(
        active_segments=active,
        sealed_segments=sum(len(each.segments) for each in layouts) - active,
        connected_consumers=connected,
        consumers_in_grace=sum(c.consumers for c in coordinators) - connected,
        longest_blocked_seconds=max((c.longest_blocked_seconds for c in coordinators), default=0.0),
    )


def _shard(controller: ShardController) -> ShardStatus:
    leader = controller.leader
    role = controller.leadership.role.value
    if leader is None:
        return ShardStatus(
            shard=controller.shard,
            role=role,
            leader_epoch=controller.following_epoch,
            head=controller.following_chunk,
            fault=controller.fault or "",
        )
    state, commit = leader.state, leader.commit
    return ShardStatus(
        shard=controller.shard,
        role=role,
        leader_epoch=leader.leader_epoch,
        head=commit.durable,
        producers=len(state.producers),
        named_producers=state.producers.named,
        in_flight_batches=commit.queued_batches,
        waiting_requests=len(leader.waiting_requests),
        queue_bytes=commit.queued_bytes,
        counts=_counts(leader),
    )
