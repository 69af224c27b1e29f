"""What this daemon knows at one moment, copied into values for the status page and the gauges. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from controller.decisions import topic_commands
from controller.leader.shard_controller import ShardController
from metrics.status import ShardSnapshot, Snapshot


def snapshot_of(instance: str, cluster: str, controllers: Iterable[ShardController]) -> Snapshot:
    """Return what ``controllers`` know now."""
    return Snapshot(
        instance=instance,
        cluster=cluster,
        shards=tuple(_shard(controller) for controller in controllers),
    )


def _shard(controller: ShardController) -> ShardSnapshot:
    reign = controller.reign
    role = controller.leadership.role.value
    if reign is None:
        return ShardSnapshot(
            shard=controller.shard,
            role=role,
            leader_epoch=controller.following_epoch,
            head=controller.following_chunk,
        )
    state, commit = reign.state, reign.commit
    return ShardSnapshot(
        shard=controller.shard,
        role=role,
        leader_epoch=reign.leader_epoch,
        head=commit.durable,
        producers=len(state.producers),
        in_flight_batches=commit.queued_batches,
        queue_bytes=commit.queued_bytes,
        topics=tuple(topic_commands.describe(topic, state.shard) for _, topic in sorted(state.topics.items())),
        subscriptions=tuple(coordinator.describe() for coordinator in reign.room.coordinators),
        backlogs=reign.backlogs.known(),
    )
