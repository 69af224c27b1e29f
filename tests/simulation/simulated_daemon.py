"""One process lifetime of a simulated daemon: real controllers, leaders, spread and answers on the simulation's servers.

It is wired as in `controller.daemon`. Only what that module does with processes, files and HTTP is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from controller.access.control import AccessControl
from controller.cluster.config import LedgerIdentity
from controller.cluster.status import ClusterStatus
from controller.context.leader_context import LeaderContext
from controller.context.step_driver import SerialSteps, TurnBudget
from controller.leader.daemon_shards import ElectionEvents, ShardGrowth
from controller.leader.follower import ShardContext
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from controller.leader.shard_spreader import ShardSpreader
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.policy.instance_record import InstanceRecord
from controller.leadership.policy.standby import estimated_bytes
from controller.leadership.policy.transitions import Event, Role, ShardLeaders
from controller.settings.sections import SpreadSettings
from headgate.errors import ConfigError
from headgate.ledger.compacted import delete_compacted_segments
from headgate.ledger.identity import name_level
from headgate.ledger.ledger import Ledger
from headgate.protocol import codec
from headgate.protocol.codec import ClusterDescription, cluster_topic, leader_topic, presence_filter
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from metrics import events
from metrics.health import Health, HealthFacts, judge_health
from shard.state.ledger_time import SteadyClock
from shard.state.shard_state import ShardState
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.leadership_checker import SETTLE_SECONDS, WRITER
from tests.simulation.simulated_peers import SimulatedPeers
from tests.simulation.situations import situation_of
from tests.support.fakes.device_broker import FakeDeviceSession
from tests.support.worlds.one_shard import now_ms

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

CLUSTER: Final = "sim"
SPREAD: Final = SpreadSettings(settle_seconds=SETTLE_SECONDS)
TRIM_INTERVAL_SECONDS, DELETE_SECONDS = {True: 3.0, False: 20.0}, 2.0
"""By `Scale.hurried`. Far shorter than a freeze may last: no promise depends on the delay."""


class SimulatedDaemon:
    def __init__(self, simulation: ClusterSimulation, name: str, levels: tuple[int, int]) -> None:
        """``levels``: the feature levels that its version supports."""
        self.simulation, self.name, self.levels = simulation, name, levels
        self.machine = simulation.faults.rare.new_clock(name)
        self.store = simulation.store()
        self._ledger_store = self.machine.around(self.store)
        self.transport = self.machine.around(simulation.broker.transport(f"daemon-{name}"))
        self._leaders = ShardLeaders(name)
        self._election_events = ElectionEvents(
            lambda: self.controllers,
            self._leaders,
            simulation.zookeeper.session_timeout_seconds,
            on_lost=lambda: self.spreader.own.session_lost(),  # noqa: PLW0108 - created later
            observer=self,
        )
        self.zookeeper_client = simulation.zookeeper.elections(name, self.machine.handler(self._election_events.handle))
        self.elections = self.machine.around(self.zookeeper_client)
        self.access = AccessControl(simulation.access_rules, self)
        self.frozen, self.thawed_at = False, -1.0
        """When it, or its store, last continued after a freeze."""
        self.clock_ahead_ms = 0
        """How far this machine's wall clock is set ahead."""
        self._clock = SteadyClock(now_ms(), now_ms())
        self._turn_budget = TurnBudget()
        self._restoring = SerialSteps(self._turn_budget, lambda: None)
        self.standby = StandbyMemory(name, self.elections, lambda: simulation.standby_bytes)
        claim = self.elections.registry.claim_ledger
        self._identity = LedgerIdentity(self._ledger_store, url="sim:", node="/sim", ledger_id=None, claim=claim)
        self.growth = ShardGrowth(simulation.shards, self.elections.registry, self._publish_description)
        self.controllers = self.growth.create(self._new_controller)
        self.spreader = ShardSpreader(
            instance=name,
            elections=self.elections,
            controllers=self.controllers,
            settings=lambda: SPREAD,
            standby=self.standby,
            replicas=lambda: simulation.standby_replicas,
            record=InstanceRecord(url=f"http://{name}", version="1", levels=levels),
            writes_fail=lambda: self.store.refuses_writes,
            observer=self,
            name_level=partial(name_level, self._ledger_store),
        )
        self.cluster_status = ClusterStatus(
            instance=name,
            cluster=CLUSTER,
            version="1",
            health=self.health,
            leader_of=self._leader_of,
            now_ms=self.now_ms,
            url=lambda: None,
            peers=SimulatedPeers(name, simulation, lambda: self.elections.registry),
            controllers=lambda: self.controllers,
            spreader=lambda: self.spreader,
        )
        self._devices: dict[str, FakeDeviceSession] = {}
        """By shard."""
        self._task: asyncio.Task[None] | None = None
        self._beside: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()

    def _new_controller(self, shard: int) -> ShardController:
        return ShardController(
            ShardContext(
                ledger=Ledger(self._ledger_store, shard),
                shards=lambda: self.growth.shards,
                found_shards=self.growth.grow,
                cluster=CLUSTER,
                instance=self.name,
                elections=self.elections,
                transport=self.transport,
                new_leader=self._new_leader,
                standby=self.standby,
                unready=self._unready,
                observer=self,
                now_ms=self.now_ms,
                new_term_id=partial(self.simulation.term_rng.getrandbits, 63),
                require_ledger=self._require_ledger,
                restoring=self._restoring,
            )
        )

    def _unready(self) -> str | None:
        if not self.transport.connected:
            return "the broker is not connected"
        return "the last write to the store has failed" if self.store.refuses_writes else None

    def start(self) -> None:
        """Start the daemon's task."""
        self.simulation.checker.leadership.daemon_started(self.name, asyncio.get_running_loop().time())
        self._task = self.machine.run(asyncio.create_task, self._run())

    def observe(self, event: events.Event) -> None:
        """Count verdicts, transfers, and what access control refuses."""
        if isinstance(event, events.TransferEnded):
            checker = self.simulation.checker
            try:
                checker.leadership.transfer_ended(self.name, event, calm=checker.calm)
            except BrokenPromiseError as error:
                self.simulation.fail(error)
            if event.reason == "spread":
                self._check_spread(event)
        elif isinstance(event, events.QuotaExceeded):
            self.simulation.checker.quotas_exceeded[event.quota] += 1
        elif isinstance(event, events.BatchJudged):
            self.simulation.checker.verdicts[event.verdict] += 1
        elif isinstance(event, events.DeviceMessageRejected):
            self.simulation.checker.device_rejections[event.reason] += 1
        if (situation := situation_of(event)) is not None:
            self.simulation.checker.situations.add(situation)
        if self.simulation.instruments is not None:
            self.simulation.instruments.observe(event)

    def _check_spread(self, event: events.TransferEnded) -> None:
        """Check a transfer that spreads shards and just ended: it was the only one, and no operator wants the shard here."""
        leadership, now = self.simulation.checker.leadership, asyncio.get_running_loop().time()
        transfers = [(each.shard, each.transfer) for each in self.controllers if each.transfer is not None]
        others = [shard for shard, transfer in transfers if transfer.reason == "spread"]
        if others and self.simulation.plan.calm and not leadership.has_just_started(self.name, now):
            self.simulation.fail(BrokenPromiseError(f"daemon {self.name!r} also spreads {others} at a time"))
        fixed = self.simulation.zookeeper.service_state.fixed.get(event.shard)
        if event.outcome == "completed" and fixed is not None and fixed is self.zookeeper_client.session:
            problem = f"shard {event.shard}, which an operator wants at daemon {self.name!r}, is spread"
            self.simulation.fail(BrokenPromiseError(problem))

    def check_terms_end(self, lost_at: float) -> None:
        """Check that its terms end without the broker, which it has not reached since ``lost_at``."""
        if not self.frozen and self.thawed_at < lost_at:
            terms = [(each.shard, each.leader.timers.began_at) for each in self.controllers if each.leader is not None]
            now = asyncio.get_running_loop().time()
            self.simulation.checker.leadership.check_terms_end(self.name, terms, lost_at, now)

    def now_ms(self) -> int:
        """Return what the daemon takes for the time."""
        now = now_ms()
        return self._clock.read(now + self.clock_ahead_ms, now)

    @property
    def led(self) -> list[int]:
        """The shards of which it considers itself the leader."""
        return [each.shard for each in self.controllers if each.leadership.role is Role.LEADING]

    @property
    def leads(self) -> bool:
        """Whether it considers itself the leader of a shard."""
        return any(controller.leadership.role is Role.LEADING for controller in self.controllers)

    @property
    def has_joined(self) -> bool:
        """Whether it has seen the queues of all shards."""
        return all(self.elections.queue(each.shard) is not None for each in self.controllers)

    def check_standby_memory(self) -> None:
        """Check that the states that it keeps of shards that it follows fit into the limit."""
        followed = [each for each in self.controllers if each.leadership.role is Role.FOLLOWING]
        kept = [each.follower.state for each in followed if each.leader is None and each.follower.keeps_state]
        kept_bytes = sum(estimated_bytes(state) for state in kept if state.chunk)
        if kept_bytes > self.simulation.standby_bytes:
            raise BrokenPromiseError(
                f"daemon {self.name!r} keeps {kept_bytes} bytes of states, above {self.simulation.standby_bytes}"
            )

    def health(self) -> Health:
        """Return what the daemon reports about itself, as `controller.daemon` judges it."""
        unreadable = {each.shard: fault for each in self.controllers if (fault := each.follower.fault) is not None}
        terms = [(each.leadership.role, each.follower.end.leader_instance) for each in self.controllers]
        return judge_health(
            HealthFacts(
                tick_age_seconds=0.0,
                zookeeper="connected",
                broker_connected=self.transport.connected,
                drain="ready",
                drain_reason="",
                shards=len(self.controllers),
                unreadable=unreadable,
                without_leader=self._leaders.without_leader(terms),
                shards_led=sum(each.leadership.role is Role.LEADING for each in self.controllers),
            )
        )

    def states(self) -> list[tuple[ShardState, bool]]:
        """Return the state of each shard that it keeps in memory, and whether it considers itself the leader."""
        return [
            (each.follower.state, False) if each.leader is None else (each.leader.state, True)
            for each in self.controllers
        ]

    async def crash(self) -> None:
        """End immediately: none of its later actions has an effect outside."""
        self.simulation.broker.cut(f"daemon-{self.name}")
        for session in self._devices.values():
            if session.connected:
                self.simulation.device_clients.broker.drop(session.client_id)
        self.simulation.zookeeper.partition(self.name)
        await self._end()

    async def stop(self) -> None:
        """Transfer all shards, hand over those that no other daemon takes, and end, as after SIGTERM."""
        self.simulation.faults.rare.leaving.append(self)
        for task in self._beside:
            task.cancel()
        with suppress(ConfigError):  # It does not support the level.
            await self.machine.awaited(self.spreader.evacuate())
        for controller in self.controllers:
            controller.post(Event.STOP_REQUESTED)
        self._ended.set()
        await asyncio.wait([self._task])  # A power failure may cancel it meanwhile.
        if not self._task.cancelled():
            self._task.result()
        self.simulation.faults.rare.leaving.remove(self)

    def freeze(self) -> None:
        """Stop all input and output, as SIGSTOP does."""
        self.frozen = True
        self.simulation.broker.pause(f"daemon-{self.name}")
        self.store.freeze()
        self.simulation.zookeeper.partition(self.name)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self.frozen = False
        checker = self.simulation.checker
        self.thawed_at = asyncio.get_running_loop().time()
        checker.rules.thawed_at = checker.leadership.thawed_at = self.thawed_at
        self.store.thaw()
        self.simulation.broker.resume(f"daemon-{self.name}")
        self.simulation.zookeeper.heal(self.name)

    async def _end(self) -> None:
        self._task.cancel()
        self.store.thaw()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        WRITER.set(self.name)
        try:
            async with AsyncExitStack() as stack:
                self.transport.on_connection(self._on_broker)
                await stack.enter_async_context(self.elections)
                await stack.enter_async_context(self.transport)
                await self.transport.subscribe(presence_filter(CLUSTER), self._on_presence)
                await self.transport.subscribe(leader_topic(CLUSTER, "+"), self._on_announcement, retained=True)
                async with asyncio.TaskGroup() as tasks:
                    await self.spreader.own.register()
                    self.growth.start(lambda controller: tasks.create_task(controller.run()))
                    self._beside = [tasks.create_task(self.spreader.run()), tasks.create_task(self.growth.run())]
                    await self._ended.wait()
                    await asyncio.gather(*self.growth.running)
        except BaseExceptionGroup as group:
            if self.levels[1] < self.simulation.level and group.split(ConfigError)[1] is None:
                self.simulation.spawn(self.simulation.replace_daemon(self))
            else:
                self.simulation.fail(group)

    def _new_leader(self, state: ShardState, yields_to_contender: Callable[[], bool]) -> ShardLeader:
        context = LeaderContext(
            cluster=CLUSTER,
            instance=self.name,
            ledger=Ledger(self._ledger_store, state.shard),
            ledger_id=bytes.fromhex(self._identity.ledger_id or ""),
            transport=self.transport,
            access=self.access,
            ingest=msgspec.structs.replace(
                self.simulation.settings.ingest,
                mqtt_devices=self.simulation.device_clients.on,
                max_producers=self.simulation.max_producers,
            ),
            subscriptions=self.simulation.settings.subscriptions,
            scaling=self.simulation.settings.scaling,
            retention=self.simulation.settings.retention,
            delete_data=partial(delete_compacted_segments, self._ledger_store),
            observer=self,
            drained_source=self.simulation.drained,
            now_ms=self.now_ms,
            rng=self.simulation.leader_rng,
            new_producer_id=partial(self.simulation.leader_rng.getrandbits, 63),
            trim_delay_seconds=DELETE_SECONDS,
            trim_interval_seconds=TRIM_INTERVAL_SECONDS[self.simulation.plan.scale.hurried],
            open_session=self._open_devices,
            turn_budget=self._turn_budget,
            overview=self.cluster_status.overview,
            feature_level=lambda: self.spreader.view.level,
            shards=lambda: self.growth.shards,
            operations=self.spreader,
        )
        return ShardLeader(state, context, yields_to_contender)

    def switch_devices(self) -> None:
        """Apply the device intake setting, as after SIGHUP."""
        for controller in self.controllers:
            if controller.leader is not None:
                self.machine.run(controller.leader.devices.sessions.set_enabled, self.simulation.device_clients.on)

    def _open_devices(
        self, name: str, handler: Callable[[ArrivedMessage], None], _: ReadingWindow
    ) -> MqttPersistentSession:
        receive = self.machine.handler(lambda delivery: handler(self.machine.around(delivery)))
        session = self.simulation.device_clients.broker.session(name, receive)
        self._devices[name] = session
        return self.machine.around(session)

    def _leader_of(self, shard: int) -> str | None:
        controller = self.controllers[shard]
        return self._leaders.leader_of(shard, controller.leadership.role, controller.follower.end.leader_instance)

    def _on_broker(self, connected: bool) -> None:
        lost_at = self.simulation.checker.leadership.broker_lost_at
        if connected:
            lost_at.pop(self.name, None)
            self._publish_description()
        elif self.name not in lost_at and "clock_drift" not in self.simulation.plan.kinds:
            lost_at[self.name] = asyncio.get_running_loop().time()
        self.spreader.own.broker_changed(connected)
        for controller in self.controllers:
            if controller.leader is not None:
                controller.leader.connection_changed(connected)

    async def _require_ledger(self) -> None:
        known = self._identity.ledger_id
        await self._identity.require()
        if known is None:
            self._publish_description()

    def _publish_description(self) -> None:
        if self._identity.ledger_id is None:
            return
        *earlier, shards = self.growth.shards.counts
        description = ClusterDescription(
            protocol=PROTOCOL_VERSION,
            shards=shards,
            earlier_shards=earlier,
            ledger_url="memory:",
            ledger_id=self._identity.ledger_id or "",
        )
        self.transport.publish(cluster_topic(CLUSTER), codec.encode(description), retain=True)

    def _on_announcement(self, topic: str, payload: bytes) -> None:
        for controller in self.controllers:
            if controller.leader is not None and topic == leader_topic(CLUSTER, controller.shard):
                controller.leader.outbox.seen(payload)

    def _on_presence(self, topic: str, payload: bytes) -> None:
        presence = codec.read_presence(topic, payload)
        for controller in self.controllers:
            if controller.leader is not None:
                controller.leader.on_presence(presence)
