"""The faults of a simulated run, and the commands that it executes meanwhile, one for each name of `plan.OPERATIONS`.

Daemons crash, freeze or stop; the broker restarts; the network loses, duplicates and reorders messages; ZooKeeper fails or
expires a session; the store fails or does not report whether it wrote; reads are damaged; a clock is wrong. Consumers join,
leave and vanish. Topics split and merge, subscriptions are moved and deleted. What operators do is in
`tests.simulation.operators`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate import Admin
from headgate.errors import CommandUnknownError, HeadgateError, NoLeaderError
from headgate.process.background import end_tasks
from tests.simulation.cluster_plan import MAIN_TOPIC
from tests.simulation.lasting_faults import LastingFaults
from tests.simulation.ledger_rules import check_seek
from tests.simulation.plan import RARE_OPERATIONS, Step
from tests.simulation.rare_clients import CROWDED, play_crowd
from tests.simulation.rare_faults import RareFaults
from tests.simulation.simulated_daemon import SimulatedDaemon
from tests.support.fakes.broker import Faults
from tests.support.worlds.one_shard import now_ms

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

TOPIC = MAIN_TOPIC
STREAM, QUEUE = "billing", "alarms"
OTHER = "shipping"
"""The subscriptions of other topics begin with it."""
DELETED = "audit"
"""A subscription that is deleted repeatedly while its consumer runs."""
DAY_MS = 86_400_000
Operation = Callable[[Admin, random.Random], Awaitable[None]]


class FaultInjector:
    """Injects faults into one simulated cluster. Its plan decides which, and when."""

    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._broker_stopped_at = 0.0
        self.lasting = LastingFaults(world, self._leader)
        self.rare = RareFaults(world, self._leader, self._stop_servers)

    async def inject(self, step: Step, admin: Admin) -> None:
        """Perform the operation of a step."""
        rng = random.Random(f"{step.seed}/{self._world.plan.salt}")
        if step.operation in RARE_OPERATIONS:
            await self.rare.inject(step.operation, rng)
        else:
            await self.inject_named(step.operation, admin, rng)

    async def inject_named(self, name: str, admin: Admin, rng: random.Random) -> None:
        """Perform an operation of this class, or of `Operators`."""
        operation: Operation | None = getattr(self, f"_{name}", None)
        await (operation or getattr(self._world.operators, name))(admin, rng)

    async def command(self, command: Awaitable[Any], what: str) -> bool:
        """Execute a command; it may fail, for example without a leader. Return whether it was done."""
        self._world.commands.token = ""
        try:
            await command
        except CommandUnknownError as error:
            self._world.log("admin", what, f"outcome unknown: {error}")
        except NoLeaderError as error:
            self._world.log("admin", what, f"failed: {error}")
            self._world.checker.command_abandoned(self._world.commands.token)
        except HeadgateError as error:
            self._world.log("admin", what, f"failed: {error}")
        else:
            self._world.log("admin", what, "done")
            return True
        return False

    def _active(self) -> list[int]:
        topic = self._world.main_state.topics[TOPIC]
        return [segment.segment_id for segment in sorted(topic.layout.active(), key=lambda s: s.first_hash)]

    async def _split(self, admin: Admin, rng: random.Random) -> None:
        segment = rng.choice(self._active())
        await self.command(admin.split(TOPIC, segment), f"split {segment}")

    async def _split_twice(self, admin: Admin, rng: random.Random) -> None:
        """Split a segment and then one of its children, which may be empty and undrained by then."""
        active = self._active()
        segment = rng.choice(active)
        await self.command(admin.split(TOPIC, segment), f"split {segment}")
        if children := [each for each in self._active() if each not in active]:
            await self.command(admin.split(TOPIC, children[0]), f"split {children[0]}, its child")

    async def _merge(self, admin: Admin, rng: random.Random) -> None:
        active = self._active()
        if len(active) > 1:
            low = rng.randrange(len(active) - 1)
            await self.command(
                admin.merge(TOPIC, active[low], active[low + 1]), f"merge {active[low]} {active[low + 1]}"
            )

    async def _seek(self, admin: Admin, rng: random.Random) -> None:
        """Seek a subscription; invalid positions are rejected."""
        subscription = rng.choice([STREAM, STREAM, QUEUE])
        tails = sorted(self._world.main_state.topics[TOPIC].tails.items())
        chosen = rng.sample(tails, rng.randint(1, min(2, len(tails))))
        wanted: dict[str, Any] = rng.choice(
            [
                {"to": "earliest"},
                {"to": "latest"},
                {"timestamp_ms": now_ms() - rng.randrange(60_000)},
                {"positions": {segment: rng.randint(0, tail.next_offset + 1) for segment, tail in chosen}},
                {"positions": {segment: tail.next_offset for segment, tail in chosen}},
            ]
        )
        await self.command(self._checked_seek(admin, subscription, wanted), f"seek {subscription} {wanted}")
        if rng.random() < 0.5:
            # Again, while its consumers read the repeated records.
            await asyncio.sleep(rng.uniform(0, 1))
            await self.command(admin.seek(TOPIC, subscription, to="earliest"), f"seek {subscription} again")
            if rng.random() < 0.3:
                # Sealed segments have unread records now.
                latest = self._checked_seek(admin, subscription, {"to": "latest"})
                await self.command(latest, f"seek {subscription} to latest after all")
        elif rng.random() < 0.3:
            await self._seek_ancestor(admin, subscription, rng)

    async def _seek_ancestor(self, admin: Admin, subscription: str, rng: random.Random) -> None:
        """Seek only a segment with many descendants, which were read."""
        topic = self._world.main_state.topics[TOPIC]
        oldest = max(sorted(topic.layout.segments), key=lambda segment: len(topic.layout.descendants({segment})))
        wanted = {"positions": {oldest: rng.randint(0, topic.tails[oldest].next_offset)}}
        await self.command(self._checked_seek(admin, subscription, wanted), f"seek {subscription} {wanted}")

    async def _checked_seek(self, admin: Admin, subscription: str, wanted: dict[str, Any]) -> None:
        """Seek, and check what was moved. Positions only rise until the next seek, which is a command of the same client."""
        before = self._world.main_state.topics[TOPIC]
        layout, ends = before.layout, {segment: tail.next_offset for segment, tail in before.tails.items()}
        result = await admin.seek(TOPIC, subscription, **wanted)
        topic = self._world.main_state.topics[TOPIC]
        records = reversed(self._world.checker.stored[TOPIC] if "timestamp_ms" in wanted else [])
        firsts = {each.segment: each.offset for each in records if each.at_ms >= wanted["timestamp_ms"]}
        check_seek(result, wanted, topic.subscriptions[subscription], topic.layout, layout, ends, firsts)

    async def _delete_subscription(self, admin: Admin, rng: random.Random) -> None:
        """Delete a subscription while its consumer runs; the consumer ends and is started again."""
        await self.command(admin.delete_subscription(TOPIC, DELETED, force=True), f"delete {DELETED}")

    async def _evict_consumer(self, admin: Admin, rng: random.Random) -> None:
        """Evict a consumer while it runs; its program ends and is started again."""
        running = [(name.rpartition("-")[0], name) for name in self._world.consumers]
        subscription, name = rng.choice([each for each in running if each[0] in (STREAM, QUEUE)])
        await self.command(admin.evict_consumer(TOPIC, subscription, name), f"evict {name}")

    async def _clock_step(self, _: Admin, rng: random.Random) -> None:
        """Set the leader's clock wrong for a moment."""
        leader = self._leader(rng)
        leader.clock_ahead_ms = rng.choice([-1, 1, 8]) * DAY_MS
        rules = self._world.checker.rules
        rules.clock_set_at = max(rules.clock_set_at, asyncio.get_running_loop().time())
        self._world.log(leader.name, f"its clock is {leader.clock_ahead_ms // DAY_MS:+} days ahead")
        self.later(rng.uniform(0.1, 5), partial(setattr, leader, "clock_ahead_ms", 0))

    async def _damaged_reads(self, _: Admin, rng: random.Random) -> None:
        """Let a daemon's disk or network flip bits for a while."""
        # Those that follow read; a leader does not.
        daemon = rng.choice([each for each in self._world.daemons if not each.leads] or self._world.daemons)
        daemon.store.damaged_reads = rng.choice([0.05, 0.3, 1.0])
        self._world.log(daemon.name, f"{daemon.store.damaged_reads:.0%} of its reads are damaged")
        self.later(rng.uniform(5, 30), partial(setattr, daemon.store, "damaged_reads", 0.0))

    def _leader(self, rng: random.Random) -> SimulatedDaemon:
        leading = [daemon for daemon in self._world.daemons if daemon.leads]
        return leading[0] if leading else rng.choice(self._world.daemons)

    async def _crash_leader(self, _: Admin, rng: random.Random) -> None:
        await self._world.crash(self._leader(rng))

    async def _freeze_leader(self, _: Admin, rng: random.Random) -> None:
        leader = self._leader(rng)
        if not leader.frozen:
            self.freeze(leader, rng.uniform(1, 20))

    def freeze(self, daemon: SimulatedDaemon, seconds: float) -> None:
        """Let a daemon freeze for so long."""
        self._world.log(daemon.name, "freezes")
        daemon.freeze()
        self.later(seconds, lambda: self._thaw(daemon))

    def _thaw(self, daemon: SimulatedDaemon) -> None:
        if daemon in self._world.daemons and daemon.frozen:
            self._world.log(daemon.name, "thaws")
            daemon.thaw()

    async def _daemon_stops(self, _: Admin, rng: random.Random) -> None:
        daemon = rng.choice(self._world.daemons)
        if daemon.frozen:
            return
        self._world.log(daemon.name, "is asked to stop")
        self._world.daemons.remove(daemon)
        self._world.start_daemon()
        await daemon.stop()

    async def _restart_broker(self, _: Admin, rng: random.Random) -> None:
        self._world.log("broker", "stops")
        self._stop_broker()
        self.later(rng.uniform(0.5, 15), self._start_broker)

    def _stop_broker(self) -> None:
        if self._world.broker.running:
            self._broker_stopped_at = asyncio.get_running_loop().time()
        self._world.broker.stop()
        self._world.device_clients.broker.stop()

    def _start_broker(self) -> None:
        if not self._world.broker.running:
            self._world.log("broker", "starts")
            for daemon in self._world.daemons:
                daemon.check_terms_end(self._broker_stopped_at)
        self._world.broker.start()
        self._world.device_clients.broker.start()

    def _stop_servers(self, seconds: float) -> None:
        """Stop broker and ZooKeeper for so long."""
        self._stop_broker()
        self._world.zookeeper.stop()
        self.later(seconds, self._start_broker)
        self.later(seconds, self._start_zookeeper)

    async def _unreliable_network(self, _: Admin, rng: random.Random) -> None:
        self._world.log("network", "loses, duplicates and reorders messages")
        self._world.broker.faults = Faults(
            delay_seconds=(0.001, 0.3), loss=0.1, duplication=0.1, reorder=rng.random() < 0.5
        )
        self.later(rng.uniform(2, 10), self._restore_network)

    def _restore_network(self) -> None:
        self._world.broker.faults = Faults()

    async def _zookeeper_outage(self, _: Admin, rng: random.Random) -> None:
        self._world.log("ZooKeeper", "stops")
        self._world.zookeeper.stop()
        self.later(rng.uniform(1, 30), self._start_zookeeper)

    def _start_zookeeper(self) -> None:
        if not self._world.zookeeper.running:
            self._world.log("ZooKeeper", "starts")
            self._world.zookeeper.start()

    async def _expire_session(self, _: Admin, rng: random.Random) -> None:
        daemon = self._leader(rng)
        self._world.log(daemon.name, "its session expires")
        self._world.zookeeper.expire_session(daemon.name)

    async def _store_trouble(self, _: Admin, rng: random.Random) -> None:
        leader = self._leader(rng)
        fault: Any = rng.choice(["unavailable", "unknown_written", "unknown_lost", "repeated"])
        luck = rng.random() if fault == "unavailable" else 1.0
        if luck < 0.5:
            self._world.log(leader.name, "does not reach the store")
            leader.store.outage()
            self.later(rng.uniform(1, 20), lambda: leader.store.outage(False))
            return
        if luck < 0.8:
            # Later than the burst: a term that has something to write ends before its shard is given away.
            self.later(began := rng.uniform(0, 20), lambda: self._refuse_writes(leader))
            self.later(began + rng.uniform(30, 90), lambda: self._allow_writes(leader))
            return
        self._world.log(leader.name, f"its next write is {fault}")
        leader.store.fail_next(fault)

    def _refuse_writes(self, daemon: SimulatedDaemon) -> None:
        self._world.log(daemon.name, "cannot write to the store")
        daemon.store.refuses_writes = True

    def _allow_writes(self, daemon: SimulatedDaemon) -> None:
        if daemon is not self.lasting.daemon:
            daemon.store.refuses_writes = False

    async def _consumer_joins(self, _: Admin, rng: random.Random) -> None:
        self._world.start_consumer(STREAM)

    async def _consumer_leaves(self, _: Admin, rng: random.Random) -> None:
        streams = [name for name in self._world.consumers if name.startswith(STREAM)]
        if len(streams) > 1:
            name = rng.choice(streams)
            self._world.log(name, "leaves")
            await end_tasks(self._world.consumers.pop(name))

    async def _consumer_vanishes(self, admin: Admin, rng: random.Random) -> None:
        streams = [name for name in self._world.consumers if name.startswith(STREAM)]
        if len(streams) > 1:
            name = rng.choice(streams)
            hangs = rng.random() < 0.5
            self._world.log(name, "hangs" if hangs else "vanishes")
            self._world.end_connections(name, hangs=hangs)
            await end_tasks(self._world.consumers.pop(name))
            if hangs and rng.random() < 0.5:
                # Another one joins while the hanging one still counts as connected, and is to give something up.
                await asyncio.sleep(rng.uniform(0, 2))
                self._world.start_consumer(STREAM)
                if rng.random() < 0.75:
                    # The subscription is moved before that.
                    await asyncio.sleep(rng.uniform(0.5, 3))
                    await self.command(admin.seek(TOPIC, STREAM, to="earliest"), f"seek {STREAM} to earliest")

    @staticmethod
    def later(seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` in so many seconds."""
        asyncio.get_running_loop().call_later(seconds, act)

    async def heal(self) -> None:
        """End all faults."""
        await asyncio.sleep(31)
        self._restore_network()
        self._start_broker()
        self._start_zookeeper()
        self.rare.heal()
        for daemon in self._world.daemons:
            daemon.clock_ahead_ms = daemon.store.damaged_reads = 0
            self._allow_writes(daemon)
            if daemon.frozen:
                self._thaw(daemon)
        self._world.log("world", "all faults have ended")
        if CROWDED & self._world.plan.kinds:
            await play_crowd(self._world, STREAM)
        elif "lasting" in self._world.plan.programs:
            await self.lasting.run(STREAM)
