"""A fault that stays when all others have ended: the rest of the cluster must make progress beside it.

One for each name of `FAULTS`; the plan's program ``lasting`` chooses one. A daemon keeps running without the broker, without
ZooKeeper, without a store that it can write, or frozen; a consumer hangs with its segments, or is refused by the broker.
Everything must be delivered within `SECONDS`, and the shards must have leaders that can work.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from controller.leadership.policy.instance_record import STORE_LOST_SECONDS
from tests.simulation.broken_promise import BrokenPromiseError

if TYPE_CHECKING:
    from tests.simulation.simulated_daemon import SimulatedDaemon
    from tests.simulation.world import ClusterSimulation

SECONDS: Final = 300.0
"""Virtual time to deliver everything after the other faults have ended. The longest part is that producers and consumers
time out: requests of the former, and with a hanging consumer its grace and revocation periods."""
LEADERS_SECONDS: Final = 60
BURST_SECONDS: Final = 60.0
IDLE_SECONDS, IDLE_LOOKS = 15.0, 4
"""Without a chunk for so long, the leaders are idle: what they delete, they delete in turns of 10 s."""
QUIET_SECONDS: Final = STORE_LOST_SECONDS + 15
"""An idle leader that cannot write gives its shard away. One with something to write ends its term before."""
FAULTS: Final = (
    "daemon_without_broker",
    "daemon_without_zookeeper",
    "daemon_without_writes",
    "daemon_frozen",
    "consumer_hangs",
    "consumer_refused",
)


class LastingFaults:
    """Chooses and begins the fault of one world. A daemon that leads is preferred: others must take its shards."""

    def __init__(self, world: "ClusterSimulation", leader: Callable[[random.Random], "SimulatedDaemon"]) -> None:
        self._world = world
        self._leader = leader
        self.lasts = False
        """Whether it has begun."""
        self.daemon: SimulatedDaemon | None = None
        """The daemon that cannot work."""

    async def run(self, stream: str) -> None:
        """Begin the fault, and let clients send for a while. ``stream``: the subscription of which a consumer is chosen."""
        self.lasts = True
        await self._until_idle()
        self._begin(stream)
        if self.daemon is not None and self.daemon.store.refuses_writes:
            await asyncio.sleep(QUIET_SECONDS)
        self._world.start_burst(BURST_SECONDS)
        await asyncio.sleep(BURST_SECONDS)

    async def _until_idle(self) -> None:
        for _ in range(IDLE_LOOKS):
            chunks = self._world.checker.chunks
            await asyncio.sleep(IDLE_SECONDS)
            if self._world.checker.chunks == chunks:
                return

    def _begin(self, stream: str) -> None:
        rng = self._world.plan.rng("lasting")
        fault = rng.choice(FAULTS)
        if fault.startswith("consumer"):
            victim = rng.choice([name for name in self._world.consumers if name.startswith(f"{stream}-")])
            self._world.log(victim, f"{fault}, permanently")
            self._world.end_connections(victim, hangs=fault == "consumer_hangs")
            self._world.start_consumer(stream)  # in its place
            return
        self.daemon = self._leader(rng)
        self._world.log(self.daemon.name, f"{fault}, permanently")
        match fault:
            case "daemon_without_broker":
                self._world.broker.cut(f"daemon-{self.daemon.name}")
            case "daemon_without_zookeeper":
                self._world.zookeeper.partition(self.daemon.name)
            case "daemon_without_writes":
                self.daemon.store.refuses_writes = True
            case _:
                self.daemon.freeze()

    async def check(self) -> None:
        """Check that the daemon that cannot work soon leads nothing, and that another one leads each shard."""
        for _ in range(LEADERS_SECONDS):
            if (problem := self._problem()) is None:
                return
            await asyncio.sleep(1)
        raise BrokenPromiseError(f"{LEADERS_SECONDS} s after the last delivery, {problem}")

    def _problem(self) -> str | None:
        if self.daemon is None:
            return None
        led = {shard for each in self._world.daemons if each is not self.daemon for shard in each.led}
        if missing := set(range(self._world.plan.shards)) - led:
            return f"shards {sorted(missing)} have no leader beside daemon {self.daemon.name!r}, which cannot work"
        if self.daemon.led and not self.daemon.frozen:
            return f"daemon {self.daemon.name!r} cannot work, and leads {self.daemon.led}"
        return None
