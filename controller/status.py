"""Collects the status of this daemon as values."""

from __future__ import annotations

from collections.abc import Iterable

from controller.decisions import topic_commands
from controller.leader.shard_controller import ShardController
from metrics.status import DaemonStatus, ShardStatus


def daemon_status(instance: str, cluster: str, controllers: Iterable[ShardController]) -> DaemonStatus:
    return DaemonStatus(
        instance=instance,
        cluster=cluster,
        shards=tuple(_shard(controller) for controller in controllers),
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
        queue_bytes=commit.queued_bytes,
        topics=tuple(topic_commands.describe(topic, state.shard) for _, topic in sorted(state.topics.items())),
        subscriptions=tuple(coordinator.describe() for coordinator in leader.subscription_registry.coordinators),
        backlogs=leader.backlogs.latest(),
    )
