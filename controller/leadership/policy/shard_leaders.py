"""Which shards have a leader now, as one daemon knows it. Pure.

A shard has a leader if this daemon leads it, or if the daemon that holds its lock is the one that
started the newest term in the ledger. The term alone does not suffice: it outlives its leader.
Neither does the lock: its holder may be unable to start a term. Announcements are not considered:
any program that can publish to their topic can forge one.
"""

from collections.abc import Sequence

from controller.leadership.policy.transitions import Role


class ShardLeaders:
    """The holders of the locks and the newest terms of all shards."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._holders: dict[int, str] = {}

    def lock_held(self, shard: int, instance: str) -> None:
        self._holders[shard] = instance

    def leader_of(self, shard: int, role: Role, leader: str) -> str | None:
        """Return the daemon that leads ``shard``, if one does; the arguments are those of `without_leader`."""
        if role is Role.LEADING:
            return self._instance
        if role is Role.FAILED:
            return self._holders.get(shard)
        return leader if self._reason(shard, role, leader) is None else None

    def without_leader(self, shards: Sequence[tuple[Role, str]]) -> dict[int, str]:
        """Return the shards without a leader, with the reason.

        ``shards``: for each, the role of this daemon, and the instance of the newest term that it has
        read in the ledger. A daemon that cannot read the ledger of a shard does not contend for it, and does not know.
        """
        return {
            shard: reason
            for shard, (role, leader) in enumerate(shards)
            if role not in (Role.LEADING, Role.FAILED) and (reason := self._reason(shard, role, leader)) is not None
        }

    def _reason(self, shard: int, role: Role, leader: str) -> str | None:
        holder = self._holders.get(shard)
        if holder is None:
            return "no daemon is known to hold its lock in ZooKeeper"
        if holder == self._instance:
            known = "holds its lock and has begun no term" if role is Role.CATCHING_UP else "has given its lock up"
            return f"this daemon {known}: see its log"
        if leader == holder:
            return None
        return f"daemon {holder!r} holds its lock, and this daemon has read no term of it: see the log of that daemon"
