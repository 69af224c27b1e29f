"""Which shards have a leader now, as one daemon knows it. Pure.

A shard has a leader if this daemon leads it, or if the daemon that holds its lock is the one that
announced itself last. The announcement alone does not suffice: it is retained, and outlives the
leader. Neither does the lock: its holder may be unable to start a term.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.leadership.transitions import Role


class ShardLeaders:
    """The holders of the locks and the announced leaders of all shards."""

    def __init__(self, instance: str, shards: int) -> None:
        """``instance`` is the name of this daemon; the cluster has ``shards`` shards."""
        self._instance = instance
        self._shards = shards
        self._holders: dict[int, str] = {}
        self._announced: dict[int, tuple[int, str]] = {}
        """Shard → (leader epoch, instance)."""

    def lock_held(self, shard: int, instance: str) -> None:
        self._holders[shard] = instance

    def announced(self, shard: int, leader_epoch: int, instance: str) -> None:
        """Record an announcement; one of an earlier term is a late copy, one of an unknown shard is ignored."""
        if 0 <= shard < self._shards:
            self._announced[shard] = max(self._announced.get(shard, (0, "")), (leader_epoch, instance))

    def without_leader(self, roles: Sequence[Role]) -> dict[int, str]:
        """Return the shards without a leader, with the reason; ``roles`` are this daemon's, by shard.

        A daemon that cannot read the ledger of a shard does not contend for it, and does not know.
        """
        return {
            shard: reason
            for shard, role in enumerate(roles)
            if role not in (Role.LEADING, Role.FAILED) and (reason := self._reason(shard, role)) is not None
        }

    def _reason(self, shard: int, role: Role) -> str | None:
        holder = self._holders.get(shard)
        if holder is None:
            return "no daemon is known to hold its lock in ZooKeeper"
        if holder == self._instance:
            return f"this daemon holds its lock and is {role.value.replace('_', ' ')}: see its log"
        if self._announced.get(shard, (0, None))[1] == holder:
            return None
        return f"daemon {holder!r} holds its lock and has not announced itself: see the log of that daemon"
