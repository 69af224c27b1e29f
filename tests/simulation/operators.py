"""What operators do in a simulated cluster, and faults in the middle of it, one for each operation of `cluster_plan`.

They transfer shards, put daemons into maintenance and back, restart all daemons one after the other, and ask for a
description of the cluster. Daemons crash, lose ZooKeeper or do not answer while a shard is transferred to or from them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headgate import Admin, Delivery
from headgate.errors import HeadgateError
from tests.simulation.assignment_checker import uneven
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.leadership_checker import unevenness
from tests.simulation.simulated_daemon import SPREAD, SimulatedDaemon
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

ASSIGNED_SECONDS = 150.0
"""Once faults have ended, the segments of each subscription are divided evenly within this time. The longest part is that
consumers that have vanished are evicted, and then segments move."""
EVEN_SECONDS = 90.0
"""Once faults have ended, shards are spread within this time. A daemon settles in `SPREAD.settle_seconds`, and so does a
term before its shard moves again; the pauses before a damaged ledger is read again are the longest part."""
STABLE_SECONDS = 2 * SPREAD.settle_seconds
"""Shards that are spread stay where they are; this is for how long a world looks."""
AMPLE_BYTES = 1 << 30
"""Of memory for the states of followed shards: all fit."""
SLOWEST_SEND_SECONDS = 0.2
"""Longest time of a send in a calm world. A transfer takes 0.1 s; a leader that stops without a successor takes more."""
GIVEN_AWAY_SECONDS = 8.0
"""A daemon that loses the broker leads nothing after so long, if another one can take its shards: it notices the loss,
its next look follows, and it transfers them. Otherwise its terms end after `UNREACHABLE_SECONDS`."""
CUT_SECONDS, RETURN_SECONDS = 14.0, 10.0
"""How long a daemon is separated from the broker, and how much later others count on it again."""
EMPTIED_SECONDS = 10.0
"""A daemon in maintenance leads nothing after so long, if another daemon was live throughout."""
JOIN_LOOKS, JOIN_SECONDS = 40, 0.5
"""A restarted daemon queues for all shards before the next one is restarted; this often the operator looks."""


class Operators:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._drained: dict[str, float] = {}
        """Daemon in maintenance → when it began."""
        self._beside: list[asyncio.Task[None]] = []
        """Operations that last longer than a step."""

    # Graceful operations

    async def shard_transfer(self, admin: Admin, rng: random.Random) -> None:
        """Transfer a shard to some daemon, which may lead it already, or not be able to."""
        await self._transfer(admin, rng.randrange(self._world.plan.shards), rng.choice(self._world.daemons).name)

    async def daemon_drain(self, admin: Admin, rng: random.Random) -> None:
        """Begin the maintenance of a daemon."""
        name = rng.choice(self._world.daemons).name
        if await self._maintain(admin, name, on=True):
            self._drained.setdefault(name, asyncio.get_running_loop().time())

    async def daemon_undrain(self, admin: Admin, rng: random.Random) -> None:
        """End the maintenance of a daemon, if one is in maintenance."""
        if drained := sorted(self._world.zookeeper.service_state.in_maintenance):
            name = rng.choice(drained)
            self._drained.pop(name, None)
            await self._maintain(admin, name, on=False)

    async def rolling_restart(self, _: Admin, rng: random.Random) -> None:
        """Restart all daemons, one after the other, each under its name.

        In a calm world it waits for the rolling restart before: together they stop a leader and its successor at once.
        """
        earlier = list(self._beside) if self._world.plan.calm else []
        self._beside.append(self._world.spawn(self._restart_all(rng, earlier)))

    async def describe_cluster(self, admin: Admin, rng: random.Random) -> None:
        """Ask for a description of the cluster and its subscriptions, in half of the cases during a transfer."""
        transfer = None
        if rng.random() < 1 / 2:
            transfer = asyncio.create_task(self.shard_transfer(admin, rng))
            await asyncio.sleep(rng.uniform(0, 0.15))
        await self._describe(admin)
        if transfer is not None:
            await transfer

    @property
    def _restarting(self) -> bool:
        return any(not each.done() for each in self._beside)

    async def _describe(self, admin: Admin) -> None:
        restarting = self._restarting
        try:
            found = await admin.describe_cluster()
            await admin.list_subscriptions()
        except HeadgateError as error:
            # All leaders may change again and again while the daemons are restarted.
            if self._world.plan.calm and not restarting and not self._restarting:
                raise BrokenPromiseError(f"the cluster is not described in a calm world: {error}") from error
            self._world.log("admin", "describe the cluster", f"failed: {error}")
        else:
            self._world.log("admin", "describe the cluster", "complete" if found.complete else "incomplete")
            self._world.checker.leadership.check_description(found.shards, self._world.shards.counts)

    # Faults

    async def crash_in_transfer(self, admin: Admin, rng: random.Random) -> None:
        """Crash the leader or the successor while a shard is transferred."""
        await self._disturb(admin, rng, self._world.crash)

    async def cut_in_transfer(self, admin: Admin, rng: random.Random) -> None:
        """Separate the leader, the successor or both from ZooKeeper while a shard is transferred, or freeze one of them."""
        alone, seconds, freezes = rng.random() < 2 / 3, rng.uniform(1, 15), rng.random() < 1 / 3

        async def cut(daemon: SimulatedDaemon) -> None:
            if not alone:
                await self._world.faults.inject_named("zookeeper_outage", admin, rng)
                return
            if freezes:
                self._world.faults.freeze(daemon, seconds)
                return
            self._world.log(daemon.name, "loses ZooKeeper")
            self._world.zookeeper.partition(daemon.name)
            asyncio.get_running_loop().call_later(seconds, self._reconnect, daemon.name)

        await self._disturb(admin, rng, cut)

    async def abandoned_successor(self, admin: Admin, rng: random.Random) -> None:
        """Transfer a shard to a daemon that does not answer."""
        found = self._pair(rng)
        if found is None:
            return
        shard, _, successor = found
        seconds = rng.uniform(5, 20)
        if rng.random() < 1 / 2:
            self._world.log(successor.name, "its store does not answer")
            successor.store.freeze()
            asyncio.get_running_loop().call_later(seconds, self._thaw_store, successor)
        else:
            self._world.faults.freeze(successor, seconds)
        await self._transfer(admin, shard, successor.name)

    async def broker_cut(self, _: Admin, rng: random.Random) -> None:
        """Separate a leader from the broker, until others have its shards or its terms have ended."""
        found = self._pair(rng)
        if found is None:
            return
        world, loop = self._world, asyncio.get_running_loop()
        daemon, lost_at, before = found[1], loop.time(), list(world.daemons)
        world.log(daemon.name, "loses the broker")
        world.broker.cut(f"daemon-{daemon.name}")
        try:
            await asyncio.sleep(GIVEN_AWAY_SECONDS)
            older = [
                each.shard
                for each in daemon.controllers
                if each.leader is not None and each.leader.timers.began_at < lost_at
            ]
            if world.plan.cuts_only and older and world.daemons == before and (takers := self._takers(daemon, lost_at)):
                raise BrokenPromiseError(
                    f"daemon {daemon.name!r} has lost the broker and leads shards {older}, and {takers} could"
                )
            await asyncio.sleep(CUT_SECONDS - GIVEN_AWAY_SECONDS)
            if daemon in world.daemons:
                daemon.check_terms_end(lost_at)
        finally:
            world.broker.heal(f"daemon-{daemon.name}")
            world.log(daemon.name, "finds the broker again")
        await asyncio.sleep(RETURN_SECONDS)

    # The end of a run

    async def finish(self) -> None:
        """Wait until all operations that are under way have ended."""
        await asyncio.gather(*self._beside)

    async def check_assignments(self) -> None:
        """Check that the segments of each subscription become evenly divided in time; faults have ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASSIGNED_SECONDS
        while (problem := self._wrong_assignment()) is not None:
            if loop.time() > deadline:
                raise BrokenPromiseError(f"{ASSIGNED_SECONDS:g} s after all faults ended, {problem}")
            await asyncio.sleep(1)

    async def check_spread(self) -> None:
        """Check that shards become even in time, and then stay where they are; and segments too. Faults have ended."""
        await self.check_assignments()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (problem := self._unevenness()) is not None:
            if loop.time() - began > EVEN_SECONDS:
                raise BrokenPromiseError(f"{EVEN_SECONDS:g} s after all faults ended, {problem}")
            await asyncio.sleep(1)
        if not self._world.plan.clustered:
            return
        epochs = self._epochs()
        await asyncio.sleep(STABLE_SECONDS)
        if moved := [shard for shard, epoch in self._epochs().items() if epoch != epochs[shard]]:
            raise BrokenPromiseError(f"shards {moved} were even, had leaders, and changed them")
        for daemon in self._world.daemons:
            daemon.check_standby_memory()
            self._check_successors(daemon)

    def _check_successors(self, leader: SimulatedDaemon) -> None:
        """Check that the lock of each shard would pass to its first successor, and that this one keeps the state."""
        for shard in leader.led:
            queue = leader.elections.queue(shard)
            for first in leader.spreader.decided.successors[shard][:1]:
                if queue is None or queue.next != first:
                    raise BrokenPromiseError(f"{queue} of shard {shard}: its first successor is {first!r}")
                follower = next(each for each in self._world.daemons if each.name == first).controllers[shard].follower
                # It reads again within a minute what it could not read before.
                is_due = self._world.standby_bytes >= AMPLE_BYTES and follower.fault is None
                if is_due and not (follower.keeps_state and follower.state.chunk):
                    raise BrokenPromiseError(f"daemon {first!r} is next for shard {shard} without its state")

    async def watch_maintenance(self) -> None:
        """Check in a calm world that daemons in maintenance are emptied, and stay empty."""
        seen: dict[tuple[str, float], set[tuple[str, float]]] = {}
        started_at = self._world.checker.leadership.started_at
        while True:
            await asyncio.sleep(EMPTIED_SECONDS)
            live = {each.name: each for each in self._world.daemons}
            maintenance = self._world.zookeeper.service_state.in_maintenance
            others = {(name, started_at[name]) for name in live.keys() - maintenance}
            present = [(name, began) for name, began in sorted(self._drained.items()) if name in live]
            for name, began in present:
                throughout = seen.get((name, began), set()) & others
                if throughout and live[name].led:
                    raise BrokenPromiseError(
                        f"daemon {name!r} is in maintenance and leads shards {live[name].led}, and "
                        f"{sorted(daemon for daemon, _ in throughout)} could"
                    )
            seen = dict.fromkeys(present, others)

    async def check_send(self, delivery: Delivery, began: float) -> None:
        """Check in a calm world that a graceful operation neither fails nor delays a send; ``began``: when it did."""
        try:
            record = await delivery
        except HeadgateError as error:
            raise BrokenPromiseError(f"a send failed in a calm world: {error}") from error
        seconds = asyncio.get_running_loop().time() - began
        leadership = self._world.checker.leadership
        leadership.slowest_send_seconds = max(leadership.slowest_send_seconds, seconds)
        if seconds > SLOWEST_SEND_SECONDS:
            raise BrokenPromiseError(f"a send took {seconds:.2f} s in a calm world: {record}")

    # Parts

    async def _transfer(self, admin: Admin, shard: int, daemon: str) -> None:
        leadership = self._world.checker.leadership
        epoch = leadership.epoch(shard)
        if await self._world.faults.command(admin.transfer_shard(shard, daemon), f"transfer shard {shard} to {daemon}"):
            leadership.check_transfer_done(shard, daemon, epoch)

    async def _maintain(self, admin: Admin, daemon: str, *, on: bool) -> bool:
        what = f"maintenance of {daemon} {'begins' if on else 'ends'}"
        return await self._world.faults.command(admin.set_maintenance(daemon, on=on), what)

    async def _disturb(
        self, admin: Admin, rng: random.Random, fault: Callable[[SimulatedDaemon], Awaitable[Any]]
    ) -> None:
        """Begin a transfer, and a moment later a fault of the leader or the successor."""
        found = self._pair(rng)
        if found is None:
            return
        shard, leader, successor = found
        transfer = asyncio.create_task(self._transfer(admin, shard, successor.name))
        await asyncio.sleep(rng.uniform(0, 0.15))
        victim = rng.choice([leader, successor])
        if victim in self._world.daemons:
            await fault(victim)
        await transfer

    def _pair(self, rng: random.Random) -> tuple[int, SimulatedDaemon, SimulatedDaemon] | None:
        """Choose a shard with its leader, and another daemon that could lead it; None: there is none."""
        shard = rng.randrange(self._world.plan.shards)
        running = [each for each in self._world.daemons if not each.frozen]
        leader = next((each for each in running if shard in each.led), None)
        others = [each for each in running if each is not leader]
        return (shard, leader, rng.choice(others)) if leader is not None and others else None

    async def _restart_all(self, rng: random.Random, earlier: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*earlier)
        for name in [each.name for each in self._world.daemons]:
            daemon = next((each for each in self._world.daemons if each.name == name and not each.frozen), None)
            if daemon is None or len(self._world.daemons) == 1:
                continue
            if self._world.plan.calm:  # Who takes over from a successor that stops begins without the state.
                given = [each for other in self._world.daemons for each in other.controllers if each.transfer]
                await until(lambda it=name, given=given: it not in [x.transfer.successor for x in given if x.transfer])
            self._world.log(name, "is restarted")
            self._world.daemons.remove(daemon)
            await daemon.stop()
            restarted = self._world.start_daemon(name)
            for _ in range(JOIN_LOOKS):
                if restarted.has_joined:
                    break
                await asyncio.sleep(JOIN_SECONDS)
            await asyncio.sleep(rng.uniform(0, 3))

    def _takers(self, loser: SimulatedDaemon, since: float) -> list[str]:
        """Return the daemons that could have taken the shards of another one ``since`` then."""
        maintenance = self._world.zookeeper.service_state.in_maintenance
        started_at = self._world.checker.leadership.started_at
        return [
            each.name
            for each in self._world.daemons
            if each is not loser and each.name not in maintenance and started_at[each.name] < since - RETURN_SECONDS
        ]

    def _reconnect(self, name: str) -> None:
        """Let a daemon, or the one that was restarted under its name, reach ZooKeeper; wait for one that cannot run."""
        if any(each.name == name and not each.frozen for each in self._world.daemons):
            self._world.log(name, "finds ZooKeeper again")
            self._world.zookeeper.heal(name)
        else:
            asyncio.get_running_loop().call_later(1, self._reconnect, name)

    def _thaw_store(self, daemon: SimulatedDaemon) -> None:
        if not daemon.frozen:
            self._world.log(daemon.name, "its store answers")
            daemon.store.thaw()
            daemon.thawed_at = asyncio.get_running_loop().time()

    def _epochs(self) -> dict[int, int]:
        return {shard: self._world.checker.leadership.epoch(shard) for shard in range(self._world.shards.shards)}

    def _wrong_assignment(self) -> str | None:
        for state in self._world.checker.states.values():
            for topic in state.topics.values():
                for subscription in topic.subscriptions.values():
                    problem = uneven(subscription, topic.layout)
                    if problem is not None:
                        return f"{subscription.name}: {problem}"
        return None

    def _unevenness(self) -> str | None:
        world = self._world
        leaders: dict[int, str | None] = {}
        for shard in range(world.shards.shards):
            newest = world.checker.leadership.terms.get(shard, [])[-1:]
            leading = {each.name for each in world.daemons if shard in each.led}
            leaders[shard] = next((each.instance for each in newest if each.instance in leading), None)
        state = world.zookeeper.service_state
        fixed = [shard for shard, session in state.fixed.items() if (state.queues.get(shard) or [None])[0] is session]
        return unevenness(leaders, [each.name for each in world.daemons], state.in_maintenance, fixed)
