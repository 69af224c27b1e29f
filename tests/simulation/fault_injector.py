"""The faults of a simulated run, and the commands that it executes meanwhile.

Daemons crash, freeze or stop; the broker restarts; the network loses, duplicates and reorders messages; ZooKeeper fails or
expires a session; the store fails or does not report whether it wrote; reads are damaged; a clock is wrong. Consumers join,
leave and vanish. Topics split and merge, subscriptions are moved and deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headgate import Admin
from headgate.errors import CommandUnknownError, HeadgateError, NoLeaderError
from tests.simulation.simulated_daemon import SimulatedDaemon, now_ms
from tests.support.fakes.broker import Faults

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

TOPIC = "orders"
STREAM, QUEUE = "billing", "alarms"
DELETED = "audit"
"""A subscription that is deleted repeatedly while its consumer runs."""
DAY_MS = 86_400_000


class FaultInjector:
    """Injects faults into one simulated cluster. The seed of the cluster decides which, and when."""

    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world

    async def inject(self, admin: Admin) -> None:
        faults: list[Callable[[Admin], Awaitable[None]]] = [
            self._split,
            self._split,
            self._merge,
            self._crash_leader,
            self._freeze_leader,
            self._restart_broker,
            self._unreliable_network,
            self._zookeeper_outage,
            self._expire_session,
            self._store_trouble,
            self._consumer_joins,
            self._consumer_leaves,
            self._consumer_vanishes,
            self._daemon_stops,
            self._seek,
            self._seek,
            self._delete_subscription,
        ]
        await self._world.rng.choice(faults)(admin)

    async def _command(self, command: Awaitable[Any], what: str) -> None:
        """Execute a command; it may fail, for example without a leader."""
        self._world.commands.token = ""
        try:
            await command
        except CommandUnknownError as error:
            self._world.log(f"{what}: {error}")
        except NoLeaderError as error:
            self._world.log(f"{what} failed: {error}")
            self._world.checker.command_abandoned(self._world.commands.token)
        except HeadgateError as error:
            self._world.log(f"{what} failed: {error}")
        else:
            self._world.log(what)

    def _active(self) -> list[int]:
        topic = self._world.checker.states[0].topics[TOPIC]
        return [segment.segment_id for segment in sorted(topic.layout.active(), key=lambda s: s.first_hash)]

    async def _split(self, admin: Admin) -> None:
        segment = self._world.rng.choice(self._active())
        await self._command(admin.split(TOPIC, segment), f"split {segment}")

    async def _merge(self, admin: Admin) -> None:
        active = self._active()
        if len(active) > 1:
            low = self._world.rng.randrange(len(active) - 1)
            await self._command(
                admin.merge(TOPIC, active[low], active[low + 1]), f"merge {active[low]} {active[low + 1]}"
            )

    async def _seek(self, admin: Admin) -> None:
        """Seek a subscription; invalid positions are rejected."""
        subscription = self._world.rng.choice([STREAM, STREAM, QUEUE])
        tails = sorted(self._world.checker.states[0].topics[TOPIC].tails.items())
        chosen = self._world.rng.sample(tails, self._world.rng.randint(1, min(2, len(tails))))
        wanted: dict[str, Any] = self._world.rng.choice(
            [
                {"to": "earliest"},
                {"to": "latest"},
                {"timestamp_ms": max(0, now_ms() - self._world.rng.randrange(60_000))},
                {"positions": {segment: self._world.rng.randint(0, tail.next_offset + 1) for segment, tail in chosen}},
                {"positions": {segment: tail.next_offset for segment, tail in chosen}},
            ]
        )
        await self._command(admin.seek(TOPIC, subscription, **wanted), f"seek {subscription} {wanted}")
        if self._world.rng.random() < 0.5:
            # Again, while its consumers read the repeated records.
            await asyncio.sleep(self._world.rng.uniform(0, 1))
            await self._command(admin.seek(TOPIC, subscription, to="earliest"), f"seek {subscription} again")

    async def _delete_subscription(self, admin: Admin) -> None:
        """Delete a subscription while its consumer runs; the consumer ends and is started again."""
        await self._command(admin.delete_subscription(TOPIC, DELETED, force=True), f"delete {DELETED}")

    async def set_clocks(self) -> None:
        """Set the leader's clock wrong for a moment, again and again."""
        while True:
            await asyncio.sleep(self._world.clock_rng.uniform(5, 30))
            leader = self._leader()
            leader.clock_ahead_ms = self._world.clock_rng.choice([-1, 1, 8]) * DAY_MS
            self._world.log(f"the clock of {leader.name} is {leader.clock_ahead_ms} ms ahead")
            try:
                await asyncio.sleep(self._world.clock_rng.uniform(0.1, 5))
            finally:
                leader.clock_ahead_ms = 0

    async def damage_reads(self) -> None:
        """Let a daemon's disk or network flip bits for a while, again and again."""
        while True:
            await asyncio.sleep(self._world.disk_rng.uniform(1, 30))
            # Those that follow read; a leader does not.
            store = self._world.disk_rng.choice(
                [each for each in self._world.daemons if not each.leads] or self._world.daemons
            ).store
            store.damaged_reads = self._world.disk_rng.choice([0.05, 0.3, 1.0])
            self._world.log(f"{store.damaged_reads:.0%} of the reads of a daemon are damaged")
            try:
                await asyncio.sleep(self._world.disk_rng.uniform(5, 30))
            finally:
                store.damaged_reads = 0.0

    def _leader(self) -> SimulatedDaemon:
        leading = [daemon for daemon in self._world.daemons if daemon.leads]
        return leading[0] if leading else self._world.rng.choice(self._world.daemons)

    async def _crash_leader(self, _: Admin) -> None:
        leader = self._leader()
        self._world.log(f"daemon {leader.name} crashes")
        self._world.daemons.remove(leader)
        await leader.crash()
        self._world.start_daemon()

    async def _freeze_leader(self, _: Admin) -> None:
        leader = self._leader()
        if leader.frozen:
            return
        self._world.log(f"daemon {leader.name} freezes")
        leader.freeze()
        self._later(self._world.rng.uniform(1, 20), lambda: self._thaw(leader))

    def _thaw(self, daemon: SimulatedDaemon) -> None:
        if daemon in self._world.daemons and daemon.frozen:
            self._world.log(f"daemon {daemon.name} thaws")
            daemon.thaw()

    async def _daemon_stops(self, _: Admin) -> None:
        daemon = self._world.rng.choice(self._world.daemons)
        if daemon.frozen:
            return
        self._world.log(f"daemon {daemon.name} is asked to stop")
        self._world.daemons.remove(daemon)
        self._world.start_daemon()
        await daemon.stop()

    async def _restart_broker(self, _: Admin) -> None:
        self._world.log("the broker stops")
        self._world.broker.stop()
        self._world.device_clients.broker.stop()
        self._later(self._world.rng.uniform(0.5, 15), self._start_broker)

    def _start_broker(self) -> None:
        self._world.broker.start()
        self._world.device_clients.broker.start()

    async def _unreliable_network(self, _: Admin) -> None:
        self._world.log("messages are lost, duplicated and reordered")
        self._world.broker.faults = Faults(
            delay_seconds=(0.001, 0.3), loss=0.1, duplication=0.1, reorder=self._world.rng.random() < 0.5
        )
        self._later(self._world.rng.uniform(2, 10), self._restore_network)

    def _restore_network(self) -> None:
        self._world.broker.faults = Faults()

    async def _zookeeper_outage(self, _: Admin) -> None:
        self._world.log("ZooKeeper stops")
        self._world.zookeeper.stop()
        self._later(self._world.rng.uniform(1, 30), self._world.zookeeper.start)

    async def _expire_session(self, _: Admin) -> None:
        daemon = self._leader()
        self._world.log(f"the session of {daemon.name} expires")
        self._world.zookeeper.expire_session(daemon.name)

    async def _store_trouble(self, _: Admin) -> None:
        store = self._leader().store
        fault: Any = self._world.rng.choice(["unavailable", "unknown_written", "unknown_lost"])
        self._world.log(f"the leader's next write is {fault}")
        store.fail_next(fault)

    async def _consumer_joins(self, _: Admin) -> None:
        self._world.start_consumer(STREAM, "STREAM")

    async def _consumer_leaves(self, _: Admin) -> None:
        streams = [name for name in self._world.consumers if name.startswith(STREAM)]
        if len(streams) > 1:
            name = self._world.rng.choice(streams)
            self._world.log(f"consumer {name} leaves")
            task = self._world.consumers.pop(name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _consumer_vanishes(self, _: Admin) -> None:
        streams = [name for name in self._world.consumers if name.startswith(STREAM)]
        if len(streams) > 1:
            name = self._world.rng.choice(streams)
            self._world.log(f"consumer {name} vanishes")
            for client_id in self._world.broker.connected():
                if client_id.startswith(f"{name}-"):
                    self._world.broker.cut(client_id)
            task = self._world.consumers.pop(name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    async def heal(self) -> None:
        """End all faults."""
        await asyncio.sleep(31)
        self._restore_network()
        self._start_broker()
        self._world.zookeeper.start()
        for daemon in self._world.daemons:
            if daemon.frozen:
                self._thaw(daemon)
        self._world.log("all faults have ended")
