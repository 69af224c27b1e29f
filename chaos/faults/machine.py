"""Faults of disk and clock, performed by a library inside the daemons (chaos.fault_shim), and a damaged chunk."""

from pathlib import Path

from chaos.cluster import ORDERS, PAYMENTS, READERS, READINGS, SHARDS
from chaos.fault_shim import ShimFault
from chaos.faults.fault import ALL_TOPICS, Fault
from headgate.errors import HeadgateError
from headgate.ledger.paths import chunk_path
from headgate.model.hashing import shard_of
from trials.cluster import last_line

HOUR_MS = 3_600_000


class ShimmedFault(Fault):
    """A fault inside the leader of the orders, or inside every daemon."""

    needs_shim = True
    fault: ShimFault
    value = 1
    everywhere = False
    """Whether every daemon has it, as when they share a disk."""

    async def begin(self) -> None:
        self._names = self.stage.daemons() if self.everywhere else [await self.stage.leader()]
        self._before = self._effects()
        for name in self._names:
            self.cluster.shims[name].set(self.fault, self.value)

    async def end(self) -> None:
        """Switch it off. Raises HeadgateError if it had no effect, because the run would prove nothing."""
        for name in self._names:
            self.cluster.shims[name].set(self.fault, 0)
        effects = self._effects() - self._before
        self.note = f"{effects:,} calls in {', '.join(self._names)}."
        if effects == 0:
            raise HeadgateError(f"the fault had no effect in {', '.join(self._names)}")

    def _effects(self) -> int:
        return sum(self.cluster.shims[name].effects(self.fault) for name in self._names)


class DiskSlow(ShimmedFault):
    """Each fsync of a daemon takes 300 ms longer."""

    name = "disk-slow"
    fault = "sync_delay_ms"
    value = 300
    everywhere = True
    continuing = ALL_TOPICS


class DiskFull(ShimmedFault):
    """The disk is full for every daemon: half of each chunk is written, then ENOSPC."""

    name = "disk-full"
    fault = "disk_full"
    everywhere = True


class FileSyncFails(ShimmedFault):
    """fsync of a new chunk fails with EIO in the leader of the orders."""

    name = "fsync-fails"
    fault = "file_sync_fails"


class FolderSyncFails(ShimmedFault):
    """fsync of the folder fails in the leader of the orders, so the outcome of each commit is unknown."""

    name = "fsync-of-folder-fails"
    fault = "folder_sync_fails"


class ClockForward(ShimmedFault):
    """The wall clock of the leader of the orders steps an hour ahead, and back."""

    name = "clock-forward"
    fault = "clock_offset_ms"
    value = HOUR_MS
    continuing = ALL_TOPICS


class ClockBackward(ShimmedFault):
    """The wall clock of the leader of the orders steps an hour back, and forward again."""

    name = "clock-backward"
    fault = "clock_offset_ms"
    value = -HOUR_MS
    continuing = ALL_TOPICS


class ChunkDamaged(Fault):
    """A bit of a chunk of the readings flips, its leader is restarted, and the chunk is repaired at the end.

    A consumer that reads the chunk ends with an error that names it, and is started again after the repair.
    """

    name = "chunk-damaged"
    seconds = 10.0
    continuing = frozenset({ORDERS, PAYMENTS})

    async def begin(self) -> None:
        """Damage the newest chunk of the shard, then make another daemon read it."""
        shard = shard_of(READINGS, SHARDS)
        leader = await self.stage.operator.leader_of(READINGS)
        number = await self.cluster.ledger(shard).newest()
        self._path = Path(self.cluster.ledger_url.removeprefix("file://")) / chunk_path(shard, number)
        self._intact = self._path.read_bytes()
        middle = len(self._intact) // 2
        damaged = self._intact[:middle] + bytes([self._intact[middle] ^ 1]) + self._intact[middle + 1 :]
        self.cluster.may_end |= {reader.name for reader in READERS if reader.topic == READINGS}
        self._replace(damaged)
        self.note = f"It was {chunk_path(shard, number)}, and the leader was {leader}."
        await self.cluster.restart_daemon(leader)

    async def end(self) -> None:
        """Repair it, and start the consumers again that it ended."""
        self._replace(self._intact)
        ended = await self.cluster.start_ended_consumers()
        self.note += "".join(
            f" {reader.name} ended: {last_line(self.cluster.log_path(reader.name))}." for reader in ended
        )
        self.cluster.may_end.clear()

    def _replace(self, data: bytes) -> None:
        beside = self._path.with_name(f".{self._path.name}.replacement")
        beside.write_bytes(data)
        beside.replace(self._path)


FAULTS: tuple[type[Fault], ...] = (
    DiskSlow,
    DiskFull,
    FileSyncFails,
    FolderSyncFails,
    ClockForward,
    ClockBackward,
    ChunkDamaged,
)
