"""Faults of daemons, consumers and Spark: killed, frozen, restarted."""

import asyncio
import os
import signal
from pathlib import Path

from chaos.cluster import ORDERS, READERS, SHARDS
from chaos.faults.fault import ALL_TOPICS, Fault
from headgate.errors import HeadgateError
from headgate.model.layout import shard_of
from headgate.process.child_process import ChildProcess, python_module
from trials.cluster import last_line

KILLS = 10
KEPT_SECONDS = 40
"""What the frozen compaction has read may be deleted after so long."""


class LeaderKilled(Fault):
    """The leader of the orders gets SIGKILL."""

    name = "leader-killed"

    async def begin(self) -> None:
        self._victim = await self.stage.leader()
        await self.cluster.kill(self._victim)
        self.note = f"It was {self._victim}."

    async def end(self) -> None:
        if self._victim not in self.cluster.programs:
            await self.cluster.start_daemon(self._victim)


class LeaderFrozen(Fault):
    """The leader of the orders gets SIGSTOP, and SIGCONT after its session has expired."""

    name = "leader-frozen"

    async def begin(self) -> None:
        self._victim = await self.stage.leader()
        self.cluster.freeze(self._victim)
        self.note = f"It was {self._victim}."

    async def end(self) -> None:
        if self._victim in self.cluster.programs:
            self.cluster.thaw(self._victim)


class RollingUpgrade(Fault):
    """Each daemon in turn is stopped with SIGTERM, and the next one waits until it is ready again."""

    name = "rolling-upgrade"
    seconds = 0.0
    continuing = ALL_TOPICS

    async def begin(self) -> None:
        names = self.stage.daemons()
        for name in names:
            await self.cluster.restart_daemon(name)
            await self.cluster.until_ready(name)
        self.note = f"In the order {', '.join(names)}."


class ConsumerKilled(Fault):
    """A consumer gets SIGKILL, and returns after its grace period."""

    name = "consumer-killed"
    continuing = ALL_TOPICS

    async def begin(self) -> None:
        running = [reader for reader in READERS if reader.name in self.cluster.programs]
        if not running:
            raise HeadgateError("no consumer runs")  # Another fault has killed them.
        self._victim = self.stage.rng.choice(running)
        await self.cluster.kill(self._victim.name)
        self.note = f"It was {self._victim.name}."

    async def end(self) -> None:
        await self.cluster.start_consumer(self._victim)


class ConsumersKilled(Fault):
    """All consumers get SIGKILL at once, ten times, and return in another order."""

    name = "consumers-killed"
    continuing = ALL_TOPICS

    async def begin(self) -> None:
        """Kill and start them; a run may not have opened yet when it is killed."""
        self.cluster.may_end |= {reader.name for reader in READERS}
        for _ in range(KILLS):
            running = [reader for reader in READERS if reader.name in self.cluster.programs]
            await asyncio.gather(*(self.cluster.kill(reader.name) for reader in running))
            self.stage.rng.shuffle(running)
            for reader in running:
                await self.cluster.start_consumer(reader)
            await asyncio.sleep(self.stage.rng.uniform(0.0, 2.0))

    async def end(self) -> None:
        self.cluster.may_end.clear()
        await self.cluster.start_ended_consumers()


class SparkFrozen(Fault):
    """Spark is suspended while a drain check waits for it."""

    name = "spark-frozen"
    continuing = ALL_TOPICS
    needs_spark = True

    async def begin(self) -> None:
        """Freeze Spark, then seal a segment, which makes the leader ask."""
        self._group = spark_group(self)
        os.killpg(self._group, signal.SIGSTOP)
        await self.stage.operator.change_layout()

    async def end(self) -> None:
        """Resume it, unless its supervisor has replaced it."""
        if self.cluster.spark.pid == self._group:
            os.killpg(self._group, signal.SIGCONT)


class SparkKilled(SparkFrozen):
    """Spark gets SIGKILL while a drain check waits for it."""

    name = "spark-killed"

    async def begin(self) -> None:
        """Suspend Spark, make the leader ask, and kill Spark before it replies."""
        await super().begin()
        await asyncio.sleep(1.0)
        os.killpg(self._group, signal.SIGKILL)

    async def end(self) -> None:
        """Do nothing: the supervisor starts Spark again."""


class CompactionFrozen(Fault):
    """A compaction gets SIGSTOP before its manifest, and SIGCONT once what it has read may be deleted."""

    name = "compaction-frozen"
    seconds = KEPT_SECONDS + 1.0
    continuing = ALL_TOPICS
    needs_spark = True

    async def begin(self) -> None:
        """Freeze one while it writes, and let another one publish a range."""
        self._frozen = await self._compact("frozen", KEPT_SECONDS)
        await self._until_written("compacted", self._frozen)
        self._frozen.freeze()
        other = await self._compact("other", 3600)
        await self._until_written("manifests", other)
        await other.kill()

    async def end(self) -> None:
        """Let it continue. It must publish nothing."""
        self._frozen.thaw()
        if await self._frozen.wait() == 0:
            raise HeadgateError("a compaction that was suspended for longer than the delay has published")
        self.note = last_line(self._frozen.log_path)

    def _written(self, kind: str) -> int:
        return len([*Path(self.cluster.ledger_url.removeprefix("file://"), kind).rglob("*.*")])

    async def _until_written(self, kind: str, by: ChildProcess) -> None:
        before = self._written(kind)
        while self._written(kind) <= before:
            if by.returncode is not None:
                raise HeadgateError(f"a compaction ended: {last_line(by.log_path)}")
            await asyncio.sleep(0.002)

    async def _compact(self, name: str, kept_seconds: int) -> ChildProcess:
        words = ["--ledger", self.cluster.ledger_url, "--shard", str(shard_of(ORDERS, SHARDS)), "--chunks", "50"]
        words += ("--delay-seconds", "0", "--delete-after-seconds", str(kept_seconds))
        command, log_path = python_module("drain.compaction.job", *words), self.cluster.log_path(f"compaction-{name}")
        return await ChildProcess.start(*command, log_path=log_path)


def spark_group(fault: Fault) -> int:
    """Return the process group of Spark. Raises HeadgateError if it does not run."""
    pid = fault.cluster.spark.pid
    if pid is None:
        raise HeadgateError("Spark does not run")
    return pid
