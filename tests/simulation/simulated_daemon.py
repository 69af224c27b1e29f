"""One process lifetime of a simulated daemon: real controllers and leaders on the simulation's servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from controller.access.control import AccessControl
from controller.devices.session_port import Delivery, DeviceSession
from controller.leader.context import LeaderContext
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.election import Acquired, Connected, ElectionEvent, Released, Suspended
from controller.leadership.transitions import Event, Role
from controller.settings.load import IngestSettings
from controller.state.shard_state import ShardState
from controller.state.steady_clock import SteadyClock
from coordinator.ports import CoordinatorSettings
from headgate.ledger.compacted import delete_compacted_segments
from headgate.ledger.ledger import Ledger
from headgate.protocol import messages as m
from metrics import events
from metrics.instruments import Instruments
from tests.support.fakes.device_broker import FakeDeviceSession

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

CLUSTER, SHARDS = "sim", 1
TRIM_INTERVAL_SECONDS, DELETE_SECONDS = {True: 3.0, False: 20.0}, 2.0
"""By `Scale.hurried`. Far shorter than a freeze may last: no promise depends on the delay."""
HURRIED = CoordinatorSettings(
    grace_seconds=12,
    revoke_timeout_seconds=8,
    heartbeat_interval_seconds=2,
    poll_min_seconds=1,
    poll_max_seconds=30,
    poll_check_timeout_seconds=10,
    # A run lasts about two minutes, and weights must change within it.
    load_sample_interval_seconds=1,
    weight_change_interval_seconds=5,
)
UNHURRIED = CoordinatorSettings(
    grace_seconds=30,
    revoke_timeout_seconds=15,
    heartbeat_interval_seconds=5,
    poll_min_seconds=2,
    poll_max_seconds=60,
    poll_check_timeout_seconds=20,
    load_sample_interval_seconds=10,
    weight_change_interval_seconds=30,
)
"""Nearer to the defaults of a daemon: several virtual minutes cost what a hurried one costs."""


def now_ms() -> int:
    """Return the loop's time as a wall clock that starts at 1 s."""
    return int(asyncio.get_running_loop().time() * 1000) + 1000


class SimulatedDaemon:
    """One process lifetime of one daemon."""

    def __init__(self, simulation: ClusterSimulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.store = simulation.store()
        self.transport = simulation.broker.transport(f"daemon-{name}")
        self.elections = simulation.zookeeper.elections(name, self._on_election)
        self.instruments = Instruments(CollectorRegistry())
        self.access = AccessControl(simulation.access_rules, self)
        self.frozen = False
        self.clock_ahead_ms = 0
        """How far this machine's wall clock is set ahead."""
        self._clock = SteadyClock(now_ms(), now_ms())
        self.standby = StandbyMemory(name, self.elections, lambda: simulation.standby_bytes)
        self.controllers = [
            ShardController(
                ledger=Ledger(self.store, shard),
                shards=SHARDS,
                instance=name,
                elections=self.elections,
                new_leader=self._new_leader,
                standby=self.standby,
                observer=self,
                now_ms=self.now_ms,
            )
            for shard in range(SHARDS)
        ]
        self._devices: FakeDeviceSession | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the daemon's task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def observe(self, event: events.Event) -> None:
        """Count verdicts, and what access control refuses."""
        if isinstance(event, events.QuotaExceeded):
            self.simulation.checker.quotas_exceeded[event.quota] += 1
        elif isinstance(event, events.BatchJudged):
            self.simulation.checker.verdicts[event.verdict] += 1
        self.instruments.observe(event)

    def now_ms(self) -> int:
        """Return what the daemon takes for the time."""
        return self._clock.read(now_ms() + self.clock_ahead_ms, now_ms())

    @property
    def leads(self) -> bool:
        """Whether it considers itself the leader."""
        return any(controller.leadership.role is Role.LEADING for controller in self.controllers)

    def states(self) -> list[ShardState]:
        """Return the state of each shard that it keeps in memory."""
        return [each._state if each.leader is None else each.leader.state for each in self.controllers]

    async def crash(self) -> None:
        """End immediately: none of its later actions has an effect outside."""
        self.simulation.broker.cut(f"daemon-{self.name}")
        if self._devices is not None and self._devices.connected:
            self.simulation.device_clients.broker.drop(self._devices.client_id)
        self.simulation.zookeeper.partition(self.name)
        await self._end()

    async def stop(self) -> None:
        """Hand over and end."""
        for controller in self.controllers:
            controller.post(Event.STOP_REQUESTED)
        assert self._task is not None
        await self._task

    def freeze(self) -> None:
        """Stop all input and output, as SIGSTOP does."""
        self.frozen = True
        self.simulation.broker.pause(f"daemon-{self.name}")
        self.store.freeze()
        self.simulation.zookeeper.partition(self.name)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self.frozen = False
        self.store.thaw()
        self.simulation.broker.resume(f"daemon-{self.name}")
        self.simulation.zookeeper.heal(self.name)

    async def _end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self.store.thaw()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self.transport.on_connection(self._on_broker)
                await stack.enter_async_context(self.elections)
                await stack.enter_async_context(self.transport)
                await self.transport.subscribe(m.presence_filter(CLUSTER), self._on_presence)
                await self.transport.subscribe(m.leader_topic(CLUSTER, "+"), self._on_announcement, retained=True)
                async with asyncio.TaskGroup() as tasks:
                    for controller in self.controllers:
                        tasks.create_task(controller.run())
        except BaseExceptionGroup as group:
            self.simulation.fail(group)

    def _new_leader(self, state: ShardState, yields_to_contender: Callable[[], bool]) -> ShardLeader:
        context = LeaderContext(
            cluster=CLUSTER,
            instance=self.name,
            ledger=Ledger(self.store, state.shard),
            transport=self.transport,
            access=self.access,
            ingest=IngestSettings(
                unreachable_seconds=10,
                write_timeout_seconds=5,
                mqtt_devices=self.simulation.device_clients.on,
                max_producers=self.simulation.max_producers,
            ),
            subscriptions=HURRIED if self.simulation.plan.scale.hurried else UNHURRIED,
            scaling=self.simulation.scaling,
            retention=self.simulation.retention,
            delete_data=partial(delete_compacted_segments, self.store),
            observer=self,
            drain_checker=self.simulation,
            now_ms=self.now_ms,
            rng=self.simulation.leader_rng,
            new_producer_id=partial(self.simulation.leader_rng.getrandbits, 63),
            trim_delay_seconds=DELETE_SECONDS,
            trim_interval_seconds=TRIM_INTERVAL_SECONDS[self.simulation.plan.scale.hurried],
            open_session=self._open_devices,
        )
        return ShardLeader(state, context, yields_to_contender)

    def switch_devices(self) -> None:
        """Apply the device intake setting, as after SIGHUP."""
        for controller in self.controllers:
            if controller.leader is not None:
                controller.leader.devices.subscriptions.set_enabled(self.simulation.device_clients.on)

    def _open_devices(self, shard: int, handler: Callable[[Delivery], None]) -> DeviceSession:
        device_clients = self.simulation.device_clients
        self._devices = device_clients.broker.session(device_clients.session_name(shard), handler)
        return self._devices

    def _on_election(self, event: ElectionEvent) -> None:
        match event:
            case Acquired(shard):
                self.controllers[shard].post(Event.LOCK_ACQUIRED)
            case Released(shard):
                self.controllers[shard].post(Event.LOCK_LOST)
            case Suspended():
                self._post_to_all(Event.CONTACT_LOST)
            case Connected():
                self._post_to_all(Event.CONTACT_REGAINED)

    def _post_to_all(self, event: Event) -> None:
        for controller in self.controllers:
            controller.post(event)

    def _on_broker(self, connected: bool) -> None:
        if connected:
            description = m.ClusterDescription(protocol=m.PROTOCOL_VERSION, shards=SHARDS, ledger_url="memory:")
            self.transport.publish(m.cluster_topic(CLUSTER), m.encode(description), retain=True)
        for controller in self.controllers:
            if controller.leader is not None:
                controller.leader.connection_changed(connected)

    def _on_announcement(self, topic: str, payload: bytes) -> None:
        for controller in self.controllers:
            if controller.leader is not None and topic == m.leader_topic(CLUSTER, controller.shard):
                controller.leader.announcer.seen(payload)

    def _on_presence(self, topic: str, payload: bytes) -> None:
        presence = m.read_presence(topic, payload)
        for controller in self.controllers:
            if controller.leader is not None:
                controller.leader.on_presence(presence)
