"""Faults of disk, clock and memory, most of them performed by a library in the processes (chaos.fault_shim)."""

import asyncio
import os
import signal
from pathlib import Path

import psutil

from chaos.cluster import ORDERS, PAYMENTS, READERS, READINGS, SHARDS
from chaos.fault_shim import ShimFault
from chaos.faults.fault import ALL_TOPICS, Fault
from chaos.faults.processes import spark_group
from headgate.errors import HeadgateError
from headgate.ledger.objects import chunk_path
from headgate.model.layout import shard_of
from headgate.process.background import cancel_and_wait
from trials.cluster import last_line

HOUR_MS = 3_600_000
DRIFT_STEP_SECONDS, DRIFT = 0.1, 0.2
"""Seconds that the drifting clock gains in each second: far more than any real one."""
ADDRESS_BYTES = 2**20
"""Less than what each process has: the kernel gives it nothing more."""
POWER_CUTS = 50
"""Attempts to find a moment at which something is not synced."""


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


ShimmedFault.variant(
    "disk-slow",
    "Each fsync of a daemon takes 300 ms longer.",
    fault="sync_delay_ms",
    value=300,
    everywhere=True,
    continuing=ALL_TOPICS,
)
ShimmedFault.variant(
    "disk-full",
    "The disk is full for every daemon: half of each chunk is written, then ENOSPC.",
    fault="disk_full",
    everywhere=True,
)
ShimmedFault.variant(
    "fsync-fails", "fsync of a new chunk fails with EIO in the leader of the orders.", fault="file_sync_fails"
)
ShimmedFault.variant(
    "fsync-of-folder-fails",
    "fsync of the folder fails in the leader of the orders, so the outcome of each commit is unknown.",
    fault="folder_sync_fails",
)
for name, direction, value in (
    ("forward", "ahead, and back", HOUR_MS),
    ("backward", "back, and forward again", -HOUR_MS),
):
    ShimmedFault.variant(
        f"clock-{name}",
        f"The wall clock of the leader of the orders steps an hour {direction}.",
        fault="clock_offset_ms",
        value=value,
        continuing=ALL_TOPICS,
    )


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


class ClockDrifts(ShimmedFault):
    """The wall clock of the leader of the orders gains 200 ms each second, and is set right again."""

    name = "clock-drifts"
    fault = "clock_offset_ms"
    value = 0
    continuing = ALL_TOPICS

    async def begin(self) -> None:
        await super().begin()
        self._running = asyncio.create_task(self._run(), name="clock drift")

    async def end(self) -> None:
        await cancel_and_wait(self._running)
        await super().end()

    async def _run(self) -> None:
        offset = 0.0
        while True:
            await asyncio.sleep(DRIFT_STEP_SECONDS)
            offset += 1000 * DRIFT_STEP_SECONDS * DRIFT
            self.cluster.shims[self._names[0]].set(self.fault, round(offset))


class PowerLost(Fault):
    """All daemons and consumers die at one moment, and what they had not synced is lost.

    Spark, which has no library, dies a second earlier: all that it has read is synced by then.
    """

    name = "power-lost"
    needs_shim = True

    async def begin(self) -> None:
        """Cut the power at a moment at which something is not synced; slow syncs make such moments frequent."""
        for shim in self.cluster.shims.values():
            shim.set("sync_delay_ms", 50)
        if self.cluster.spark.pid is not None:
            os.killpg(spark_group(self), signal.SIGKILL)
        await asyncio.sleep(1.0)
        self._victims = [*self.stage.daemons(), *(each.name for each in READERS if each.name in self.cluster.programs)]
        names, data = await self._freeze_at_a_bad_moment()
        self.cluster.may_end |= {reader.name for reader in READERS}
        await asyncio.gather(*(self.cluster.kill(name) for name in self._victims))
        for path in data - names:
            os.truncate(path, 0)
        for path in names:
            path.unlink(missing_ok=True)
        self.note = f"Lost: {len(names)} objects and the data of {len(data)}."

    async def end(self) -> None:
        self.cluster.may_end.clear()
        await self.cluster.restore()
        await self.cluster.start_ended_consumers()

    async def _freeze_at_a_bad_moment(self) -> tuple[set[Path], set[Path]]:
        journal = self.cluster.journal
        if journal is None:
            raise HeadgateError("there is no journal of syncs")
        for _ in range(POWER_CUTS):
            for name in self._victims:
                self.cluster.freeze(name)
            names, data = journal.unsynced()
            if names:
                return names, data
            for name in self._victims:
                self.cluster.thaw(name)
            await asyncio.sleep(self.stage.rng.uniform(0.01, 0.1))
        raise HeadgateError(f"everything was synced at each of {POWER_CUTS} moments")


class DaemonMemory(Fault):
    """The leader of the orders may allocate no more memory."""

    name = "memory-of-leader"

    async def begin(self) -> None:
        """Set the limit of its address space below what it has."""
        leader = await self.stage.leader()
        self.limit(self.cluster.programs[leader].pid)
        self.note = f"It was {leader}."

    async def end(self) -> None:
        """Give the memory back."""
        if self._process.is_running():
            self._process.rlimit(psutil.RLIMIT_AS, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        else:
            self.note = f"{self.note} It ended.".strip()

    def limit(self, pid: int) -> None:
        """Let the kernel give ``pid`` no more memory."""
        self._process = psutil.Process(pid)
        self._process.rlimit(psutil.RLIMIT_AS, (ADDRESS_BYTES, psutil.RLIM_INFINITY))


class SparkMemory(DaemonMemory):
    """Spark may allocate no more memory while a drain check waits for it."""

    name = "memory-of-spark"
    continuing = ALL_TOPICS
    needs_spark = True

    async def begin(self) -> None:
        """Set the limit, and make the leader ask."""
        self.limit(spark_group(self))
        await self.stage.operator.change_layout()
