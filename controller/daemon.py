"""The daemon: creates its components, runs them, and stops them in order.

One transport, ZooKeeper session, store and drain checker serve all shards. An exception in the task
group is a bug: it ends the process, and systemd restarts it.
"""

import asyncio
import random
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from controller.access.control import AccessControl
from controller.cluster.config import ClusterConfig, LedgerIdentity, join_cluster
from controller.cluster.own_status import shard_statuses
from controller.cluster.peers import Peers
from controller.cluster.status import ClusterStatus
from controller.connections.broker import BrokerConnection
from controller.connections.drain import DrainChecker, DrainConnection
from controller.connections.store import probe_writes
from controller.connections.zookeeper import elections_root, zookeeper_credentials, zookeeper_elections
from controller.context.leader_context import LeaderContext, TraceCommits
from controller.context.step_driver import SerialSteps, TurnBudget
from controller.devices.intake import UnknownTopicWatch
from controller.leader.daemon_shards import ElectionEvents, ShardGrowth
from controller.leader.follower import ShardContext
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from controller.leader.shard_spreader import ShardSpreader
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.election import Elections
from controller.leadership.policy.feature_levels import supported
from controller.leadership.policy.instance_record import InstanceRecord
from controller.leadership.policy.transitions import Event, Role, ShardLeaders
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.process.garbage_collection import GarbageCollection
from controller.process.headroom import FileDescriptorWatch, FileSystemWatch, file_descriptors, measured_folders
from controller.process.liveness import LoopWatchdog, SystemdNotifier
from controller.process.logs import change_level
from controller.settings.files import read_http_access, read_peer_tls, report_certificates
from controller.settings.load import Settings, advertised_url, security_warnings
from controller.settings.reload import reloaded
from controller.snapshots.scheduler import SnapshotScheduler
from headgate.ledger.compacted import delete_compacted_segments
from headgate.ledger.identity import name_level
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_folder
from headgate.log.lossy_output import take_lost_lines
from headgate.process.background import end_tasks
from headgate.protocol import codec
from headgate.storage.object_store import Store, open_store
from headgate.transport.port import Transport
from metrics import events
from metrics.health import Health, HealthFacts, judge_health
from metrics.instruments import Instruments
from shard.requests.client_ids import ClientIds
from shard.state.ledger_time import SteadyClock
from shard.state.shard_state import ShardState
from web.server import HttpServer

VERSION = version("headgate-client")
TICK_INTERVAL_SECONDS = 0.25
"""Liveness and the watchdog depend on this tick."""
ID_BITS = 63
"""Ids of producers and terms have as many as msgpack and Parquet store as a signed number."""
GAUGE_INTERVAL_SECONDS = 5.0
"""Pause between two updates of the gauges that show the state."""

log = structlog.get_logger(__name__)


def read_clocks() -> tuple[int, int]:
    """Return milliseconds since 1970 and since the machine booted. No other code of the daemon reads a wall clock."""
    # CLOCK_BOOTTIME also counts while the machine is suspended; only Linux has it.
    elapsed = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    # Of Python's clocks, only this one has a value beyond the year 2262.
    return int(time.clock_gettime(time.CLOCK_REALTIME) * 1000), time.clock_gettime_ns(elapsed) // 1_000_000


@dataclass(frozen=True, slots=True)
class Joined:
    """What a daemon has once it has joined its cluster. Before, it answers health and metrics only."""

    config: ClusterConfig
    elections: ZooKeeperElections
    growth: ShardGrowth
    spreader: ShardSpreader


class Daemon:
    """One headgate process. It contends for every shard of its cluster."""

    def __init__(self, settings: Settings, read_clocks: Callable[[], tuple[int, int]] = read_clocks) -> None:
        self.settings = settings
        limits = settings.metrics.backlog_topics, settings.metrics.max_subscriptions
        self.instruments = Instruments(CollectorRegistry(), *limits)
        self.instruments.observe(events.IngestQueueLimitSet(size_bytes=settings.ingest.queue_bytes))
        self.instruments.observe(events.NamedProducerLimitSet(producers=settings.ingest.max_named_producers))
        self._garbage = GarbageCollection(self.instruments)
        self._restoring = SerialSteps(TurnBudget(), self._garbage.keep)
        self._read_clocks = read_clocks
        self._clock = SteadyClock(*read_clocks())
        self._joined: Joined | None = None
        self._ticked_at = 0.0
        self._election_events = ElectionEvents(
            lambda: self._controllers,
            ShardLeaders(self.instance),
            settings.zookeeper.session_timeout_seconds,
            on_lost=self._on_session_lost,
            observer=self.instruments,
        )
        self._elections: ZooKeeperElections | None = None
        self._broker = BrokerConnection(settings, self.instruments, random.Random())  # noqa: S311 - jitter
        self.drain = DrainConnection(settings, self.instruments, random.Random(), self._recheck_drained)  # noqa: S311
        self._access = AccessControl(settings.access.rules(), self.instruments)
        self._cluster_status = ClusterStatus(
            instance=self.instance,
            cluster=settings.cluster.name,
            version=VERSION,
            url=self._url,
            health=self.health,
            leader_of=self._leader_of,
            now_ms=self._now_ms,
            peers=Peers(
                self.instance,
                lambda: read_peer_tls(self.settings.http),
                registry=lambda: None if self._joined is None else self._joined.elections.registry,
                token_for=self._token_for,
            ),
            controllers=lambda: self._controllers,
            spreader=lambda: None if self._joined is None else self._joined.spreader,
        )
        self.http = self._http_server()
        report_certificates(settings, self.instruments)

    @property
    def instance(self) -> str:
        """The name of this daemon. A reload does not change it."""
        return self.settings.instance.name

    @property
    def _controllers(self) -> Sequence[ShardController]:
        return () if self._joined is None else self._joined.growth.controllers

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then hand over all shards and close all connections."""
        settings = self.settings
        notifier = SystemdNotifier()
        self._ticked_at = asyncio.get_running_loop().time()
        store = open_store(settings.ledger.url)
        for advice in security_warnings(settings):
            log.warning("settings.insecure", advice=advice)
        async with AsyncExitStack() as stack:
            stack.enter_context(self._garbage)
            await stack.enter_async_context(self._cluster_status.peers)
            await stack.enter_async_context(FileDescriptorWatch())
            await stack.enter_async_context(FileSystemWatch(measured_folders(settings), self.instruments))
            await stack.enter_async_context(self.http)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            with LoopWatchdog() as watchdog:
                ticking = tasks.create_task(self._tick(notifier, watchdog), name="tick")
                try:
                    await self._run_inside(stack, tasks, store, stop, notifier)
                finally:
                    ticking.cancel()
                    notifier.stopping()

    async def _run_inside(
        self,
        stack: AsyncExitStack,
        tasks: asyncio.TaskGroup,
        store: Store,
        stop: asyncio.Event,
        notifier: SystemdNotifier,
    ) -> None:
        settings = self.settings
        await self.drain.start(stack)
        elections = self._elections = zookeeper_elections(settings, self.instance, self._election_events.handle)
        await stack.enter_async_context(elections)
        stack.callback(tasks.create_task(elections.watch(), name="zookeeper-client").cancel)
        node = f"{elections_root(settings)}/config"
        config = await join_cluster(elections.registry, settings, node, store, stop, self.instruments)
        if config is None:
            return
        drain_checker = await self.drain.connect(stack, lambda: config.ledger.ledger_id)
        growth = ShardGrowth(config.shards, elections.registry, self._broker.publish_description)
        standby = StandbyMemory(self.instance, elections, lambda: self.settings.standby.memory_bytes)
        spreader = self._shard_spreader(elections, growth, standby, config, store)
        self._joined = Joined(config, elections, growth, spreader)
        await spreader.own.register()
        # A connection with the name of another daemon would end that one's, and be ended by it, again and again.
        ends = {asyncio.ensure_future(each.wait()) for each in (elections.registry.registered, stop)}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*ends)
        if stop.is_set():
            return
        transport = self._broker.transport(
            self.instance, config.session_secret, lambda: config.describe(settings.ledger.url, growth.shards)
        )
        transport.on_connection(partial(self._on_broker, spreader))
        await stack.enter_async_context(transport)
        await transport.subscribe(codec.leader_topic(settings.cluster.name, "+"), self._on_leader, retained=True)
        await transport.subscribe(codec.presence_filter(settings.cluster.name), partial(self._on_presence, ClientIds()))
        parts = self._joined, transport, drain_checker, standby
        growth.create(
            lambda shard: self._controller(Ledger(store, shard, partial(self._on_foreign_objects, shard)), *parts)
        )
        stack.callback(tasks.create_task(self._cluster_status.sample(), name="history").cancel)
        growth.start(lambda each: tasks.create_task(each.run(), name=f"shard-{each.shard}"))
        work = self._beside(self._joined, store, transport)
        beside = [tasks.create_task(each, name=name) for name, each in work.items()]
        notifier.ready()
        log.info("daemon.started", instance=self.instance, shards=growth.shards.shards, http=self.http.address)
        await stop.wait()
        log.info("daemon.stopping", instance=self.instance)
        notifier.stopping()
        for task in beside:
            task.cancel()
        await self._stop_leading(spreader, growth.running)

    async def _stop_leading(self, spreader: ShardSpreader, running: Sequence[asyncio.Task[None]]) -> None:
        """Transfer all shards, hand over those that no other daemon takes, and leave all queues."""
        await spreader.evacuate()
        for controller in self._controllers:
            controller.post(Event.STOP_REQUESTED)
        await asyncio.gather(*running)
        log.info("daemon.stopped", instance=self.instance)

    def _leader_of(self, shard: int) -> str | None:
        controller = self._controllers[shard]
        leader = controller.follower.end.leader_instance
        return self._election_events.leaders.leader_of(shard, controller.leadership.role, leader)

    def health(self) -> Health:
        transport, now_ms = self._broker.main, self._now_ms()
        ahead_ms = max((each.state.at_ms - now_ms for each in self._active_leaders()), default=0)
        return judge_health(
            HealthFacts(
                tick_age_seconds=asyncio.get_running_loop().time() - self._ticked_at,
                zookeeper=self._election_events.state,
                zookeeper_problem=self._election_events.problem,
                broker_connected=transport is not None and transport.connected,
                broker_problem=None if transport is None else transport.unreachable_reason,
                drain=self.drain.state[0],
                drain_reason=self.drain.state[1],
                shards=len(self._controllers),
                ledger_url=self.settings.ledger.url,
                unreadable={x.shard: x.follower.fault for x in self._controllers if x.follower.fault is not None},
                contested=[each.shard for each in self._controllers if each.is_contested],
                store_problems=self.instruments.store_problems,
                clock_held_seconds=self._clock.step_ms / 1000,
                ledger_ahead_seconds=ahead_ms / 1000,
                descriptors=file_descriptors(),
                without_leader=self._election_events.leaders.without_leader(
                    [(each.leadership.role, each.follower.end.leader_instance) for each in self._controllers]
                ),
                shards_led=sum(controller.leadership.role is Role.LEADING for controller in self._controllers),
            )
        )

    def reload(self, read: Settings) -> None:
        """Apply the settings in ``read`` that can change at run time, and log those that need a restart.

        Raises ConfigError, and changes nothing, if a file that a setting names is unusable: all are read first.
        """
        access_rules = read.access.rules()
        http_access = read_http_access(self.settings.http, access_rules)
        zookeeper = zookeeper_credentials(self.settings.zookeeper)
        self._broker.reload()
        if self._elections is not None:
            self._elections.use(zookeeper)
        reload = reloaded(self.settings, read)
        self.settings = reload.settings
        report_certificates(self.settings, self.instruments)
        change_level(self.settings.log.level)
        self._access.rules, self.http.access = access_rules, http_access
        log.info("settings.reloaded", applied=reload.applied, needs_restart=reload.needs_restart)
        for setting in reload.needs_restart:
            log.warning("settings.needs_restart", setting=setting)
        for leader in self._active_leaders():
            leader.timers.autoscaler.settings, leader.pruner.settings = self.settings.scaling, self.settings.retention
            leader.devices.sessions.set_enabled(self.settings.ingest.mqtt_devices)

    def _http_server(self) -> HttpServer:
        settings = self.settings
        return HttpServer(
            settings.http.host,
            settings.http.port,
            registry=self.instruments.registry,
            health=self.health,
            source=self._cluster_status,
            observer=self.instruments,
            daemon=self.instance,
            cluster=settings.cluster.name,
            version=VERSION,
            is_peer=self._is_peer,
            connect=lambda: None if self._joined is None else self._broker.admin,
            access=read_http_access(settings.http, self._access.rules),
            ledger_url=settings.ledger.url,
            runbook_url=settings.http.runbook_url,
        )

    def _controller(
        self, ledger: Ledger, joined: Joined, transport: Transport, drain_checker: DrainChecker, standby: StandbyMemory
    ) -> ShardController:
        def new_leader(state: ShardState, yields_to_contender: Callable[[], bool]) -> ShardLeader:
            settings = self.settings  # Those at the start of the term: `reload` may have changed them.
            self._garbage.keep()
            context = LeaderContext(
                cluster=settings.cluster.name,
                instance=self.instance,
                ledger=ledger,
                ledger_id=bytes.fromhex(joined.config.ledger.ledger_id or ""),
                transport=transport,
                access=self._access,
                ingest=settings.ingest,
                subscriptions=settings.for_coordinator(),
                scaling=settings.scaling,
                retention=settings.retention,
                delete_data=partial(delete_compacted_segments, ledger.store),
                observer=self.instruments,
                drained_source=drain_checker.drained,
                drain_problem=self.drain.problem,
                now_ms=self._now_ms,
                new_producer_id=partial(secrets.randbits, ID_BITS),
                open_session=self._broker.device_session,
                trim_delay_seconds=settings.compaction.delete_delay_seconds if settings.compaction.enabled else None,
                turn_budget=self._restoring.budget,
                backlog_source=self.drain.query_backlog,
                backlog_interval_seconds=settings.metrics.backlog_interval_seconds,
                overview=self._cluster_status.overview,
                feature_level=lambda: joined.spreader.view.level,
                shards=lambda: joined.growth.shards,
                operations=joined.spreader,
                trace_commits=_installed_tracing(),
            )
            return ShardLeader(state, context, yields_to_contender)

        context = ShardContext(
            ledger=ledger,
            shards=lambda: joined.growth.shards,
            found_shards=joined.growth.grow,
            cluster=self.settings.cluster.name,
            instance=self.instance,
            elections=joined.elections,
            transport=transport,
            new_leader=new_leader,
            standby=standby,
            unready=lambda: self._unready(transport),
            observer=self.instruments,
            now_ms=self._now_ms,
            new_term_id=partial(secrets.randbits, ID_BITS),
            require_ledger=partial(self._require_ledger, joined.config.ledger),
            restoring=self._restoring,
        )
        return ShardController(context)

    async def _require_ledger(self, identity: LedgerIdentity) -> None:
        """Do as `LedgerIdentity.require`. Clients need the id that it may have found."""
        known = identity.ledger_id
        await identity.require()
        if identity.ledger_id != known:
            self._broker.publish_description()

    def _unready(self, transport: Transport) -> str | None:
        if not transport.connected:
            return "the broker is not connected"
        problem = self.instruments.store_problems.get("create")
        return None if problem is None else f"the last write to the store has failed: {problem}"

    def _shard_spreader(
        self, elections: Elections, growth: ShardGrowth, standby: StandbyMemory, config: ClusterConfig, store: Store
    ) -> ShardSpreader:
        return ShardSpreader(
            instance=self.instance,
            elections=elections,
            controllers=growth.controllers,
            settings=lambda: self.settings.spread,
            standby=standby,
            replicas=lambda: self.settings.standby.replicas,
            record=InstanceRecord(url=self._url() or "", version=VERSION, levels=supported()),
            level=config.level,
            writes_fail=self.instruments.writes_fail,
            observer=self.instruments,
            name_level=partial(name_level, store),
        )

    def _beside(self, joined: Joined, store: Store, transport: Transport) -> dict[str, Coroutine[None, None, None]]:
        """Return what the daemon does beside its shards until it stops, by name."""
        snapshots = SnapshotScheduler(
            store=store,
            ledger_url=self.settings.ledger.url,
            chunks=self.settings.snapshots.min_chunks,
            pause_seconds=self.settings.snapshots.min_interval_seconds,
            heads=lambda: {leader.state.shard: leader.commit.durable for leader in self._active_leaders()},
            observer=self.instruments,
        )
        unknown_topics = UnknownTopicWatch(
            cluster=self.settings.cluster.name,
            transport=transport,
            intakes=lambda: [None if each.leader is None else each.leader.devices for each in self._controllers],
            shards=lambda: joined.growth.shards,
            enabled=lambda: self.settings.ingest.mqtt_devices,
        )

        def doubts_store() -> bool:
            # What took ZooKeeper away may have taken the store, too.
            return self._election_events.state != "connected" or joined.spreader.doubts_store()

        return {
            "snapshots": snapshots.run(),
            "unknown-topics": unknown_topics.run(),
            "spread": joined.spreader.run(),
            "growth": joined.growth.run(),
            "writes": probe_writes(store, self.instruments, doubts_store),
        }

    def _now_ms(self) -> int:
        """Return milliseconds since 1970, and report a step of the clock."""
        held_ms = self._clock.step_ms
        now_ms = self._clock.read(*self._read_clocks())
        if self._clock.step_ms != held_ms:
            advice = "check the time synchronization of this machine; a step that lasts for ten minutes is followed"
            advice = advice if self._clock.step_ms else "none: no step is held back any more"
            log.warning("clock.stepped", held_seconds=self._clock.step_ms / 1000, advice=advice)
        return now_ms

    async def _tick(self, notifier: SystemdNotifier, watchdog: LoopWatchdog) -> None:
        loop = asyncio.get_running_loop()
        gauges_set_at = 0.0
        while True:
            await asyncio.sleep(TICK_INTERVAL_SECONDS)
            now = loop.time()
            if now - gauges_set_at >= GAUGE_INTERVAL_SECONDS:
                gauges_set_at = now
                statuses = shard_statuses(self._controllers)
                self.instruments.observe(events.StatusCollected(shards=statuses, now_seconds=now))
                notifier.status(self.health().summary)
                self.instruments.observe(events.LogLinesLost(count=take_lost_lines()))
                self._report_time()
                self._garbage.collect_if_due(sum(each.term.ended for each in self._controllers), now)
            lag_seconds = max(0.0, now - self._ticked_at - TICK_INTERVAL_SECONDS)
            self.instruments.observe(events.LoopLagMeasured(seconds=lag_seconds))
            self._ticked_at = now
            notifier.watchdog()
            watchdog.tick()

    def _url(self) -> str | None:
        """Return where others reach this daemon; None: it does not listen yet."""
        address = self.http.address
        return advertised_url(self.settings.http, address, socket.gethostname()) if address else None

    def _token_for(self, receiver: str) -> str:
        assert self._joined is not None, "only a daemon that has joined knows others"
        return self._joined.config.session_secret.http_token(receiver, self._now_ms())

    def _is_peer(self, token: str) -> bool:
        secret = None if self._joined is None else self._joined.config.session_secret
        return secret is not None and secret.accepts_http_token(token, self.instance, self._now_ms())

    def _report_time(self) -> None:
        now_ms = self._now_ms()
        for leader in self._active_leaders():
            ahead_seconds = max(0, leader.state.at_ms - now_ms) / 1000
            self.instruments.observe(events.LedgerTimeCompared(shard=leader.state.shard, ahead_seconds=ahead_seconds))
        self.instruments.observe(events.ClockStepHeld(seconds=self._clock.step_ms / 1000))

    def _on_session_lost(self) -> None:
        if self._joined is not None:
            self._joined.spreader.own.session_lost()

    def _active_leaders(self) -> list[ShardLeader]:
        return [controller.leader for controller in self._controllers if controller.leader is not None]

    def _on_broker(self, spreader: ShardSpreader, connected: bool) -> None:
        self.instruments.observe(events.BrokerConnectionChanged(connected=connected))
        if connected:
            self._broker.publish_description()
        spreader.own.broker_changed(connected)
        for leader in self._active_leaders():
            leader.connection_changed(connected)

    def _on_presence(self, client_ids: ClientIds, topic: str, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if self._access.admit(codec.sender_of_presence(topic), len(payload), now, full=False) is not None:
            return  # Heartbeats show soon enough who is connected.
        try:
            presence = codec.read_presence(topic, payload)
        except msgspec.DecodeError as error:
            self.instruments.observe(events.MalformedMessageReceived(reason="presence"))
            log.debug("presence.malformed", error=str(error))
            return
        conflict = client_ids.check(presence)
        if conflict is not None:
            self.instruments.observe(events.ClientIdConflictSeen())
            if conflict.first:
                log.warning(
                    "client.id_used_twice",
                    client_id=presence.client_id,
                    newer=conflict.newer,
                    remedy="give each program a client id of its own",
                )
        for leader in self._active_leaders():
            leader.on_presence(presence)

    def _on_foreign_objects(self, shard: int, names: Sequence[str]) -> None:
        self.instruments.observe(events.ForeignObjectsFound(shard=shard, count=len(names)))
        if names:
            log.warning("ledger.foreign_objects", folder=chunk_folder(shard), count=len(names), names=names)

    def _on_leader(self, topic: str, payload: bytes) -> None:
        for leader in self._active_leaders():
            if topic == codec.leader_topic(self.settings.cluster.name, leader.state.shard):
                leader.announcer.seen(payload)

    def _recheck_drained(self) -> None:
        """Ask again for blocked segments without waiting for the next poll."""
        for leader in self._active_leaders():
            for coordinator in leader.subscription_registry.coordinators.values():
                coordinator.drain.wake()


def _installed_tracing() -> TraceCommits | None:
    try:
        from controller.chunk_writer.commit_spans import installed_tracing  # noqa: PLC0415 - opentelemetry-api is optional
    except ImportError:
        return None
    return installed_tracing()
