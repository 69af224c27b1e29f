"""Faults that some simulated runs have: each costs more than those of `FaultInjector`, or changes the world around them.

One for each name of `plan.RARE_OPERATIONS`. Objects of the ledger are damaged until they are repaired. The machine of all
daemons and consumers loses power, with everything that was not durable, and starts again. The clocks of daemons run fast
or slow, each at its own rate. Clients and leaders get messages of later versions of the program. The broker keeps requests
and publications of devices, and gives them to each new leader. A topic whose records are elsewhere has readers too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.errors import LedgerError
from headgate.process.background import end_tasks
from tests.simulation.cluster_plan import MAIN_TOPIC
from tests.simulation.drifting_clocks import MachineClock, TrueClock
from tests.simulation.external_program import READERS, SUBSCRIPTION, ExternalProgram
from tests.simulation.external_program import TOPIC as EXTERNAL
from tests.simulation.other_versions import later_version
from tests.simulation.page_cache import CachedObjects
from tests.simulation.rare_programs import RarePrograms
from tests.simulation.rule_breaker import RuleBreaker
from tests.simulation.simulated_daemon import CLUSTER
from tests.support.fakes.broker import Message

if TYPE_CHECKING:
    from shard.state.topic import Topic
    from tests.simulation.simulated_daemon import SimulatedDaemon
    from tests.simulation.world import ClusterSimulation

KINDS = ("chunks/", "chunks/", "snapshots/", "manifests/", "compacted/")
"""Folders of the objects that are damaged; one that is listed twice is chosen twice as often."""
POWER_FAILURE_SECONDS = 5.0
"""How long a power failure waits for a write that it interrupts."""
RESTART_SECONDS = 5.0
"""Pause before a program that has read a damaged object is started again."""


class RareFaults:
    """Injects rare faults into one simulated cluster."""

    def __init__(
        self,
        world: ClusterSimulation,
        leader: Callable[[random.Random], SimulatedDaemon],
        stop_servers: Callable[[float], None],
    ) -> None:
        """``leader`` returns the daemon that leads, or any other. ``stop_servers``: for so many seconds."""
        self._world = world
        self._leader = leader
        self._stop_servers = stop_servers
        self._drifts = any(step.operation == "clock_drift" for step in world.plan.steps)
        self._most_drift = 0.0
        self._retained_share = 0.0
        self.external: ExternalProgram | None = None
        self.leaving: list[SimulatedDaemon] = []
        """Daemons that are asked to stop, and still run."""
        self.external_tasks: list[asyncio.Task[None]] = []
        """Its importer and its readers, which run elsewhere: they lose no power."""
        self.rule_breaker: RuleBreaker | None = None
        self.programs = RarePrograms(world)

    async def start(self) -> list[asyncio.Task[None]]:
        """Start the rare programs of the plan, and return those that end with the faults."""
        world = self._world
        if "external" in world.plan.programs:
            await self._external_topic(world.plan.rng("external"))
        world.checker.rules.producers.most = world.max_producers
        started = self.programs.start()
        if "rule_breaker" not in world.plan.programs:
            return started
        self.rule_breaker = RuleBreaker(
            world.plan.rng("rule breaker"), world.broker, CLUSTER, MAIN_TOPIC, lambda: world.main_state, world.log
        )
        return [*started, world.spawn(self.rule_breaker.run())]

    async def inject(self, operation: str, rng: random.Random) -> None:
        """Perform an operation."""
        perform: Callable[[random.Random], Awaitable[None]] = getattr(self, f"_{operation}")
        await perform(rng)

    def heal(self) -> None:
        """End these faults."""
        self._world.broker.rewrite = None
        self._world.device_clients.retain = 0.0
        self._retained_share = 0.0
        self._most_drift = 0.0
        for daemon in self._world.daemons:
            self._set_rate(daemon.machine, daemon.name)
            daemon.zookeeper_client.clock_rate = 1.0
        self._repair_objects()

    # Damaged objects

    async def _damaged_object(self, rng: random.Random) -> None:
        """Damage an object at rest; then a daemon may have to read it."""
        objects = self._world.objects
        found = [each for each in (self._paths(kind) for kind in KINDS) if each]
        paths = rng.choice(found)
        path = rng.choice([paths[-1], rng.choice(paths)])
        data, how = damaged(objects[path], rng)
        if self._is_followed(path) and rng.random() < 0.4:
            objects.hide(path)
            how = "is lost"
        else:
            objects.damage(path, data)
        self._world.log("store", path, how)
        asyncio.get_running_loop().call_later(rng.uniform(5, 60), self._repair_objects)
        if rng.random() < 0.7:
            await self._world.crash(self._leader(rng))

    def _paths(self, kind: str) -> list[str]:
        objects = self._world.objects
        return sorted(path for path in objects.keys() - set(objects.damaged) if path.startswith(kind))

    def _is_followed(self, path: str) -> bool:
        """Return whether a later chunk exists. Without one, a lost chunk is a lost end, which no program can notice."""
        folder = path.rpartition("/")[0]
        later = (each for each in self._world.objects if each > path and each.startswith(f"{folder}/"))
        return path.startswith("chunks/") and any(True for _ in later)

    def _repair_objects(self) -> None:
        for daemon in self._world.daemons:
            for controller in daemon.controllers:
                if controller.follower.fault is not None:
                    self._world.log(daemon.name, f"shard {controller.shard} cannot be read", controller.follower.fault)
        for path in self._world.objects.repair():
            self._world.log("store", path, "is repaired")

    @asynccontextmanager
    async def ending_at_damage(self, program: str) -> AsyncIterator[None]:
        """End a program that reads a damaged object, and let it be started again after a while.

        An error that does not name a damaged object fails the run.
        """
        try:
            yield
        except LedgerError as error:
            if not any(path in str(error) for path in self._world.objects.ever_damaged):
                raise
            self._world.log(program, "ends", str(error))
            await asyncio.sleep(RESTART_SECONDS)

    # Clocks

    def new_clock(self, name: str) -> TrueClock:
        if not self._drifts:
            return TrueClock()
        clock = MachineClock()
        self._set_rate(clock, name)
        return clock

    async def _clock_drift(self, rng: random.Random) -> None:
        """Let the clocks of all daemons drift from now on, some forward and some back."""
        self._most_drift = rng.choice([0.002, 0.02, 0.1])
        checker = self._world.checker
        checker.fastest_clock = max(checker.fastest_clock, 1 + self._most_drift)
        for daemon in self._world.daemons:
            rate = self._set_rate(daemon.machine, daemon.name)
            daemon.zookeeper_client.clock_rate = rate
            self._world.log(daemon.name, f"its clock runs at {rate:.4f}")

    def _set_rate(self, clock: TrueClock, name: str) -> float:
        rate = 1 + self._world.plan.rng(f"clock of {name}").choice([-1, 1]) * self._most_drift
        if self._drifts:
            clock.drift(rate)
        return rate

    # Messages

    async def _other_versions(self, rng: random.Random) -> None:
        """Let every message, or a part of them, be of a later version, with unknown fields."""
        later = rng.choice([0.3, 1.0])
        self._world.log("clients, leaders", f"{later:.0%} of their messages are of a later version")

        def rewrite(message: Message) -> Message:
            return later_version(message) if rng.random() < later else message

        self._world.broker.rewrite = rewrite

    async def _retained_messages(self, rng: random.Random) -> None:
        """Let a program publish retained copies of requests in the name of their senders, and devices retain theirs."""
        self._world.log("broker", "retains requests, and publications of devices")
        self._world.device_clients.retain = 0.5
        self._world.device_clients.broker.mqtt5 = self._world.broker.mqtt5
        if not self._retained_share:
            self._world.broker.spies.append(lambda message: self._retain(message, rng))
        self._retained_share = 0.2

    def _retain(self, message: Message, rng: random.Random) -> None:
        if "/requests/" in message.topic and not message.retain and rng.random() < self._retained_share:
            copied = replace(message, retain=True)
            asyncio.get_running_loop().call_later(rng.uniform(0, 20), self._world.broker.route, copied)

    # External topics

    async def _external_topic(self, rng: random.Random) -> None:
        """Create a topic whose records are stored elsewhere, and start its readers; its source continues to grow."""
        if self.external is not None:
            return
        world = self._world
        self.external = ExternalProgram(rng, world.client, world.log, world.fail, self._acknowledged, self._pruned)
        self.external_tasks.append(world.spawn(self.external.grow()))
        self.external_tasks += [world.spawn(self.external.read(f"reader-{number}")) for number in range(READERS)]
        world.log("source", "has an external topic")

    def _acknowledged(self, label: str) -> int:
        topic = self._topic_of_source()
        segment = next((each for each in topic.layout.segments.values() if each.label == label), None)
        read = topic.subscriptions.get(SUBSCRIPTION)
        return 0 if segment is None or read is None else read.position(segment.segment_id)

    def _pruned(self, label: str) -> bool:
        return all(each.label != label for each in self._topic_of_source().layout.segments.values())

    def _topic_of_source(self) -> Topic:
        return next(each.topics[EXTERNAL] for each in self._world.checker.states.values() if EXTERNAL in each.topics)

    @property
    def is_settled(self) -> bool:
        """Whether the readers of an external topic have read everything, and newcomers have sent their records."""
        return self.programs.is_settled and (self.external is None or self.external.is_settled)

    def check(self) -> None:
        """Raise BrokenPromiseError unless `is_settled`, and for a record that had to be refused."""
        self.programs.check()
        if self.external is not None:
            self.external.check()
        if self.rule_breaker is not None:
            self.rule_breaker.check(self._world.checker.counters.keys())

    # Power failures

    async def _power_failure(self, rng: random.Random) -> None:
        """End all daemons and consumers at once, with what is not durable, and start them again.

        The power fails during a write, if one begins soon; the disk may be slow before. Producers are elsewhere. Broker
        and ZooKeeper may be on the machine: they keep what they have confirmed.
        """
        world = self._world
        objects = world.objects
        assert isinstance(objects, CachedObjects)
        if rng.random() < 0.5:
            objects.sync_seconds = rng.uniform(0.5, 2)
            world.log("machine", f"needs {objects.sync_seconds:.1f} s to sync a folder")
            await asyncio.sleep(rng.uniform(0, 10))
        with suppress(TimeoutError):
            async with asyncio.timeout(POWER_FAILURE_SECONDS):
                await objects.changed.wait()
            await asyncio.sleep(rng.uniform(0, objects.sync_seconds + 0.01))
        objects.sync_seconds = 0.0
        for store in world.stores:
            store.outage()
        world.log("machine", "loses power", ", ".join(objects.lose(rng)) or "and no object")
        if rng.random() < 0.5:
            world.log("machine", "broker and ZooKeeper are on it")
            self._stop_servers(rng.uniform(0.5, 10))
        daemons, consumers = len(world.daemons), [name.rpartition("-")[0] for name in world.consumers]
        await self._end_machine()
        await asyncio.sleep(rng.uniform(0.5, 10))
        world.start_maintenance()
        for _ in range(daemons):
            world.start_daemon()
        for subscription in consumers:
            world.start_consumer(subscription)

    async def _end_machine(self) -> None:
        """End all programs of the machine. None of their later actions has an effect outside."""
        world = self._world
        running = [*world.daemons, *self.leaving]
        world.daemons.clear()
        ended = [f"daemon-{daemon.name}" for daemon in running]
        ended += [each for each in world.broker.connected() if each.rpartition("-")[0] in world.consumers]
        for client_id in ended:
            world.broker.cut(client_id)
        while running:
            await running.pop().crash()
        tasks = [*world.consumers.values(), *world.end_maintenance()]
        world.consumers.clear()
        await end_tasks(*tasks)
        for store in world.stores:
            store.outage(False)


def damaged(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Return other bytes in place of ``data``, and how they differ."""
    if not data:
        return b"\0", "has one byte"
    at = rng.randrange(len(data))
    kind = rng.choice(["bit", "bit", "page", "end", "all"])
    if kind == "bit":
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :], f"bit of byte {at} is flipped"
    if kind == "page":
        lost = bytes(min(512, len(data) - at))
        if data[at : at + len(lost)] != lost:
            return data[:at] + lost + data[at + len(lost) :], f"{len(lost)} bytes from {at} on are zero"
    return (b"", "is empty") if kind == "all" else (data[:at], f"is cut to {at} of {len(data)} bytes")
