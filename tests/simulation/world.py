"""A whole cluster in one event loop and in virtual time: real daemons, producers and consumers on simulated servers.

Real: leadership, leaders, verdicts, state, group commit, coordinators with gate, target, handover and poller, the
producer session and the client library. Simulated: ZooKeeper, the broker, the store, Spark's answer, the network and
the clock. One seed decides everything, so a run repeats exactly.

A `Plan` says which programs run, and which faults and commands `FaultInjector` performs when. MQTT devices publish. A faulty client may repeat
batches with other content. A forger may replace the announcements of leaders. Users may have less than their programs want.
A named program may end at any moment and continue at its source position. Half of the seeds balance by load. An
`InvariantChecker` sees every write and every delivery, and ends the run at the first violation.
"""

import asyncio
import math
import random
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from controller.leadership.policy.feature_levels import FIRST
from controller.retention import pruner
from controller.settings.sections import IngestSettings
from controller.snapshots.job import take_snapshot
from drain.protocol import DrainedResponse, DrainQuery
from headgate import Admin, ConsumedRecord, Consumer, Delivery, Producer, errors
from headgate.client.connection import Client
from headgate.ledger.compacted import manifest_ranges
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import compacted_through, ranges_to_read
from headgate.model.layout import ShardMap, shard_of
from headgate.process.background import end_tasks
from metrics.instruments import Instruments
from shard.requests.topic_commands import MAX_SEGMENTS, merge_entry, split_entry
from shard.state import ledger_time
from shard.state.ledger_time import CONFIRMATION_MS
from shard.state.shard_state import ShardState
from shard.subscriptions import deliveries
from shard.subscriptions.deliveries import MAX_RECORDS
from tests.simulation import lasting_faults
from tests.simulation.clients import SWITCH_PROBABILITY, CommandClient, DeviceClients
from tests.simulation.cluster_plan import DAEMONS, topic_on
from tests.simulation.drawn_settings import WorldSettings
from tests.simulation.fault_injector import DELETED, OTHER, QUEUE, STREAM, TOPIC, FaultInjector
from tests.simulation.faulty_client import FaultyClient
from tests.simulation.forger import Forger
from tests.simulation.handlers import Handlers, uses_run
from tests.simulation.hotspot_program import MOST_SEGMENTS
from tests.simulation.import_program import MAX_PRODUCERS, ImportProgram
from tests.simulation.invariant_checker import BrokenPromiseError, InvariantChecker
from tests.simulation.ledger_rules import LedgerRules
from tests.simulation.operators import Operators
from tests.simulation.page_cache import objects_of
from tests.simulation.plan import DISTURBING, Plan
from tests.simulation.rare_clients import balances_by_load, client_kind, headers_of, value_of
from tests.simulation.simulated_daemon import CLUSTER, DELETE_SECONDS, SimulatedDaemon
from tests.simulation.tenants_program import tenant_limits
from tests.simulation.upgrade_program import LAST
from tests.simulation.user_rights import rules_of
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.zookeeper import FakeZooKeeper
from tests.support.worlds.one_shard import now_ms
from trials.compaction import compact

KEYS = 12
KINDS = {STREAM: "STREAM", QUEUE: "QUEUE", DELETED: "CHECKPOINT"}
"""Subscription → its type; all others are STREAM."""
SNAPSHOT_CHUNKS, COMPACTED_CHUNKS, FIRST_BURST_SECONDS = 10, 8, 2.0
SETTLE_SECONDS = 900.0
"""Virtual time in which a healed cluster must deliver everything."""
LATE_LISTINGS_EVERY = 5
"""Seeds in which a listing may not show what was just written."""
COMMAND_SECONDS = 2.0
"""Time-out of commands, below the duration of most freezes."""

ClientT = TypeVar("ClientT", bound=Client)


class ClusterSimulation:
    def __init__(self, plan: Plan, checker: InvariantChecker, *, device_switches: float = SWITCH_PROBABILITY) -> None:
        self.plan = plan
        self.checker = checker
        self.objects, self.store_kind = objects_of(plan, checker)
        self.broker = FakeBroker(plan.rng("broker"), mqtt5=plan.seed % 4 != 0)
        self.zookeeper = FakeZooKeeper(plan.rng("zookeeper"), session_timeout_seconds=6)
        self.installed = FIRST, plan.rng("levels").randrange(FIRST, LAST) if "upgrade" in plan.programs else LAST
        """Feature levels of the version that new daemons have."""
        self.zookeeper.service_state.config = {"shards": plan.shards, "level": self.installed[1]}
        checker.level = lambda: self.level
        self.settings = WorldSettings(plan)
        # A limit that a segment's failed records reach, where there is enough time for all of them.
        few = "workers" in plan.programs and not {"lasting", "parkers", "rebirth"} & plan.kinds and plan.seed % 2
        vars(deliveries)["MAX_RECORDS"] = 4 if few else MAX_RECORDS
        self.daemons: list[SimulatedDaemon] = []
        self.consumers: dict[str, asyncio.Task[None]] = {}
        self.committed: dict[str, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
        """Topic → key → counters."""
        self.not_stored: dict[str, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.producing = True
        self.maintenance_rng = plan.rng("maintenance")
        self.drain_rng = plan.rng("drain")
        self.leader_rng = plan.rng("leaders")
        self.term_rng = plan.rng("terms")
        self.main_shard = shard_of(TOPIC, plan.shards)
        self.others = {
            f"{OTHER}-{part[6:]}": topic_on(int(part[6:]), plan.shards)
            for part in plan.programs
            if part.startswith("shard-")
        }
        """Subscription → topic, of the shards without `TOPIC`."""
        self.topics = [TOPIC, *self.others.values()]
        self.standby_bytes, self.standby_replicas = (0, 2000, 1 << 30)[plan.seed % 3], 1 + plan.seed % 2
        """So that followers keep no state, a few, or all of which they are a successor."""
        self.by_load = balances_by_load(plan)
        self.faults = FaultInjector(self)
        self.operators = Operators(self)
        checker.calm, checker.rules = plan.calm, self._rules()
        ingest = self.settings.ingest
        checker.rules.producers.idle_seconds = ingest.producer_idle_seconds
        checker.rules.producers.chunk_seconds = ingest.unreachable_seconds + ingest.write_timeout_seconds
        checker.leadership.unreachable_seconds = ingest.unreachable_seconds
        checker.rules.holdings.leases_end = not plan.kinds & {"clock_drift", "power_failure", "evict_consumer"}
        checker.rules.holdings.streams = {STREAM, *self.others}
        checker.leadership.knows_writers = "power_failure" not in plan.kinds
        self._maintenance: asyncio.Task[None] | None = None
        self._instances_started = 0
        self.stores: list[FakeStore] = []
        """All clients of the bucket."""
        self._names = 0
        self._burst = asyncio.Event()
        self._burst_end: asyncio.TimerHandle | None = None
        self._failure: asyncio.Future[None] | None = None
        self._make_clients(device_switches)
        checker.quotas.limits = tenant_limits(plan) if "tenants" in plan.programs else {}
        self.access_rules = rules_of(plan, self.settings.limits, dict(checker.quotas.limits))

    def _rules(self) -> LedgerRules:
        clocks_differ = self.plan.kinds & {"power_failure", "clock_drift", "moved_clocks"}
        # A clock that is wrong for a moment only is right again before that.
        vars(ledger_time)["CONFIRMATION_MS"] = 20_000 if "moved_clocks" in self.plan.kinds else CONFIRMATION_MS
        retention = self.settings.retention
        most_segments = MOST_SEGMENTS if "hotspots" in self.plan.programs else MAX_SEGMENTS
        for entry in (split_entry, merge_entry):
            entry.__kwdefaults__["max_segments"] = most_segments
        vars(pruner)["MAX_SEGMENTS"] = most_segments
        return LedgerRules(
            max_age_ms=1000 * retention.max_age_seconds if self.plan.seed % 2 else None,
            max_bytes=None if retention.max_bytes < 0 else retention.max_bytes,
            most_segments=most_segments,
            compaction_seconds=0.0 if clocks_differ else DELETE_SECONDS,
            revoke_seconds=self.settings.subscriptions.fence_seconds,
            calm=self.plan.calm,
        )

    def _make_clients(self, device_switches: float) -> None:
        """Make the clients that are not producers and consumers of the plan, and note what consumers must get."""
        plan, shard = self.plan, self.main_shard
        imports = "import" in plan.programs
        self.instruments = None if plan.chunks == "memory" else Instruments(CollectorRegistry())
        self.device_clients = DeviceClients(
            plan.rng("devices"),
            CLUSTER,
            TOPIC,
            self._switch_devices,
            self.pause,
            shard=shard,
            switch_probability=device_switches,
        )
        self.faulty_client = (
            FaultyClient(plan.rng("faulty"), self.broker, CLUSTER, shard) if "faulty" in plan.programs else None
        )
        self.forger = Forger(plan, self.broker, CLUSTER, shard, self.checker) if "forger" in plan.programs else None
        self.import_program = (
            ImportProgram(plan.rng("import"), self.client, TOPIC, self.pause, shard) if imports else None
        )
        kinds = {"stream": STREAM, "queue": QUEUE}
        self._consumed = sorted(
            {(TOPIC, kinds[kind]) for name in plan.programs if (kind := name.partition("-")[0]) in kinds}
        ) + [(topic, subscription) for subscription, topic in self.others.items()]
        """(topic, subscription) of those that must be delivered completely."""
        self.max_producers = MAX_PRODUCERS if imports else IngestSettings().max_producers

    @property
    def shards(self) -> ShardMap:
        """As ZooKeeper has them."""
        found = ShardMap.read(self.zookeeper.service_state.config["shards"])
        assert found is not None, "a damaged list"
        return found

    @property
    def level(self) -> int:
        """The feature level of the cluster."""
        return int(self.zookeeper.service_state.config["level"])

    @property
    def main_state(self) -> ShardState:
        return self.checker.states[self.main_shard]

    def store(self) -> FakeStore:
        """Return another client of the bucket."""
        rng = self.plan.rng(f"store {len(self.stores) + 1}")
        self.stores.append(self.store_kind(rng, objects=self.objects, latency_seconds=(0.001, 0.02)))
        if self.plan.seed % LATE_LISTINGS_EVERY == 1:
            self.stores[-1].late_listings = 0.3
        return self.stores[-1]

    def client(self, client_id: str, kind: type[ClientT] = Client, user: str | None = None) -> ClientT:
        """Return another program's connection, not yet entered."""
        return kind(
            transport=self.broker.transport(client_id, will=Client.will(CLUSTER, client_id, user)),
            store=self.store(),
            cluster=CLUSTER,
            client_id=client_id,
            user=user,
            now_ms=now_ms,
            rng=self.plan.rng(f"client {client_id}"),
        )

    def fail(self, error: BaseException) -> None:
        """End the run with ``error``."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def log(self, actor: str, what: str, result: str = "") -> None:
        """Add a row to the story that a failed run prints."""
        self.checker.story.add(asyncio.get_running_loop().time(), actor, what, result)

    # Bursts

    def start_burst(self, seconds: float) -> None:
        """Let clients send for so long as if they were busy."""
        self._burst.set()
        if self._burst_end is not None:
            self._burst_end.cancel()
        if self.plan.scale.idle_seconds is not None:
            self._burst_end = asyncio.get_running_loop().call_later(seconds, self._burst.clear)

    async def pause(self, rng: random.Random, low_seconds: float, high_seconds: float) -> None:
        """Pause a client for so long in a burst, and outside until the next one or for an idle time."""
        if self.plan.scale.idle_seconds is not None and not self._burst.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(*self.plan.scale.idle_seconds)):
                    await self._burst.wait()
        await asyncio.sleep(rng.uniform(low_seconds, high_seconds))

    # The run

    async def run(self) -> None:
        """Perform the plan, heal the cluster, and check all invariants."""
        self._failure = asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(self._run_scenario())
        try:
            await asyncio.wait({playing, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                await self._failure
            await playing
        finally:
            await end_tasks(playing)
            self._failure.cancel()

    async def _run_scenario(self) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(DAEMONS + sum(part.startswith("daemon-") for part in self.plan.programs)):
                self.start_daemon()
            stack.push_async_callback(self._end_everything)
            self.commands = self.client("admin", CommandClient)
            admin = await stack.enter_async_context(Admin(self.commands, timeout_seconds=COMMAND_SECONDS))
            created = {topic: await admin.create_topic(topic, segments=2) for topic in self.topics}
            self.device_clients.publish_to(created[TOPIC].topic_id)
            self.start_burst(FIRST_BURST_SECONDS)
            others: list[asyncio.Task[None]] = []
            producers = []
            consumers = {"stream": STREAM, "queue": QUEUE, "checkpoint": DELETED}
            for program in self.plan.programs:
                kind, _, number = program.partition("-")
                if kind in consumers or kind == "shard":
                    self.start_consumer(consumers.get(kind, f"{OTHER}-{number}"))
                elif kind == "producer":
                    producers.append(self.spawn(self._produce(int(number))))
                elif kind == "maintenance":
                    self.start_maintenance()
                elif kind == "devices":
                    others.append(self.spawn(self.device_clients.publish()))
                else:
                    assert kind == "daemon" or program in DISTURBING, program
            others += await self._start_others()
            began = asyncio.get_running_loop().time()
            for step in self.plan.steps:
                await asyncio.sleep(began + step.at_seconds - asyncio.get_running_loop().time())
                self.start_burst(step.burst_seconds)
                await asyncio.sleep(step.lead_seconds)
                await self.faults.inject(step, admin)
            await self.operators.finish()
            await self.faults.heal()
            self.producing = False
            self.start_burst(math.inf)
            for other in others:
                other.cancel()
            for producer in producers:
                await producer
            if "growth" in self.plan.programs:
                await self.faults.rare.programs.growth.finish()
            if "upgrade" in self.plan.programs:
                await self.faults.rare.programs.upgrade.finish()
            await self._wait_until_delivered()
            self._check()
            if self.faults.lasting.lasts:
                await self.faults.lasting.check()
            else:
                await self.operators.check_spread()

    async def _start_others(self) -> list[asyncio.Task[None]]:
        """Start the programs that only some worlds have, and return those that end with the faults."""
        others = await self.faults.rare.start()
        if self.faulty_client is not None:
            others.append(self.spawn(self.faulty_client.run(self.checker, self.fail)))
        if self.forger is not None:
            others.append(self.spawn(self.forger.run()))
        if self.import_program is not None:
            others += [self.spawn(self.import_program.run()), self.spawn(self.import_program.open_anonymous())]
        if self.plan.calm:
            others.append(self.spawn(self.operators.watch_maintenance()))
        return others

    def _check(self) -> None:
        for daemon in self.daemons:
            for state, leads in daemon.states():
                self.checker.check_state(state, daemon.name, leads=leads)
        self.device_clients.check()
        self.faults.rare.check()
        self.checker.check_nothing_lost(TOPIC, self.device_clients.published)
        for topic in self.topics:
            self.checker.check_nothing_lost(topic, self.committed[topic])
            held = {(record.key, int(record.value)) for record in self.checker.stored[topic]}
            for key, counters in self.not_stored[topic].items():
                if wrong := [counter for counter in counters if (key, counter) in held]:
                    raise BrokenPromiseError(f"{key!r} {wrong[:5]} were reported as not stored, and are stored")
        for topic, subscription in self._consumed:
            self.checker.check_everything_delivered(topic, subscription)
        self.checker.clients.check(self._consumed)

    async def _wait_until_delivered(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (lasting_faults.SECONDS if self.faults.lasting.lasts else SETTLE_SECONDS)
        while loop.time() < deadline:
            if (
                self.device_clients.is_settled
                and self.faults.rare.is_settled
                and not any(self.checker.undelivered(*each) for each in self._consumed)
            ):
                return
            await asyncio.sleep(1)
        self.log("world", "the last deliveries did not arrive in time")

    async def _run_maintenance(self) -> None:
        """Write snapshots and compact, as separate processes do; the leaders delete old chunks."""
        store = self.store()
        while True:
            await asyncio.sleep(self.maintenance_rng.uniform(*self.plan.scale.maintenance_seconds))
            for shard in range(self.shards.shards):
                await self._maintain(Ledger(store, shard))

    async def _maintain(self, ledger: Ledger) -> None:
        try:
            head = self.checker.chunk(ledger.shard)
            await take_snapshot(ledger, least_chunks=SNAPSHOT_CHUNKS, now_ms=now_ms(), level=self.level, head=head)
            ranges = ranges_to_read(await manifest_ranges(ledger.store, ledger.shard))
            last = compacted_through(ranges)
            if last + COMPACTED_CHUNKS <= head:
                await compact(ledger, last + 1, last + COMPACTED_CHUNKS, written_at_ms=now_ms())
                self.log("maintenance", f"compacts chunks {last + 1} to {last + COMPACTED_CHUNKS}")
        except (errors.StoreError, errors.LedgerError) as error:
            self.log("maintenance", "snapshot and compaction", f"failed: {error}")

    async def _end_everything(self) -> None:
        self.producing = False
        await end_tasks(*self.end_maintenance(), *self.consumers.values(), *self.faults.rare.external_tasks)
        for daemon in self.daemons:
            await daemon.crash()

    # Daemons and clients

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """Start a task whose error ends the run."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(
            lambda done: None if done.cancelled() or not done.exception() else self.fail(done.exception())
        )
        return task

    def start_daemon(self, name: str | None = None, levels: tuple[int, int] | None = None) -> SimulatedDaemon:
        """Start a daemon, by default one with a new name, and of the version that is installed."""
        self._instances_started += name is None
        daemon = SimulatedDaemon(self, name or f"d{self._instances_started}", levels or self.installed)
        self.daemons.append(daemon)
        daemon.start()
        self.log(daemon.name, "starts")
        return daemon

    async def crash(self, daemon: SimulatedDaemon) -> None:
        """Crash a daemon, and start another one."""
        self.log(daemon.name, "crashes")
        await self._replace(daemon)

    async def replace_daemon(self, daemon: SimulatedDaemon) -> None:
        """Start another daemon in place of one that has ended."""
        self.log(daemon.name, "ends: it does not support the level")
        if daemon in self.daemons:
            await self._replace(daemon)

    async def _replace(self, daemon: SimulatedDaemon) -> None:
        self.daemons.remove(daemon)
        await daemon.crash()
        self.start_daemon()

    def _switch_devices(self) -> None:
        self.log("devices", f"are switched {'on' if self.device_clients.on else 'off'}")
        for daemon in self.daemons:
            daemon.switch_devices()

    def start_maintenance(self) -> None:
        """Start the snapshots and compactions, if the plan has them."""
        if "maintenance" in self.plan.programs:
            self._maintenance = self.spawn(self._run_maintenance())

    def end_maintenance(self) -> list[asyncio.Task[None]]:
        """Return the task of snapshots and compactions, for its end; none if there is none."""
        ended, self._maintenance = self._maintenance, None
        return [] if ended is None else [ended]

    def end_connections(self, consumer: str, *, hangs: bool = False) -> None:
        """Cut a consumer from the broker, or let it hang, so that only missing heartbeats show it."""
        for client_id in self.broker.connected():
            if client_id.rpartition("-")[0] == consumer:
                (self.broker.pause if hangs else self.broker.cut)(client_id)

    def start_consumer(self, subscription: str) -> None:
        self._names += 1
        name = f"{subscription}-{self._names}"
        self.consumers[name] = self.spawn(self._consume(name, subscription, KINDS.get(subscription, "STREAM")))
        self.log(name, "joins")

    async def _produce(self, number: int) -> None:
        rng = self.plan.rng(f"producer {number}")
        counters: dict[tuple[str, bytes], int] = defaultdict(int)
        waiting: list[tuple[str, bytes, int, Delivery]] = []
        async with Producer(self.client(f"producer-{number}"), settings=self.settings.producer) as producer:
            while self.producing:
                for _ in range(rng.randint(1, 6)):
                    key = b"%d/%d" % (number, rng.randrange(KEYS))
                    topic = rng.choice(self.topics) if len(self.topics) > 1 else TOPIC
                    counter = counters[topic, key]
                    counters[topic, key] += 1
                    began = asyncio.get_running_loop().time()
                    self.checker.clients.sent(topic, key, counter, f"producer-{number}")
                    delivery = await producer.send(
                        topic, key, value_of(self.plan, counter), headers=headers_of(key, counter)
                    )
                    waiting.append((topic, key, counter, delivery))
                    if self.plan.calm:
                        self.spawn(self.operators.check_send(delivery, began))
                await self.pause(rng, 0.02, rng.choice([0.03, 1.0]))  # often before the reply
            for topic, key, counter, delivery in waiting:
                try:
                    await delivery
                except errors.DeliveryFailedError:
                    self.not_stored[topic][key].append(counter)
                    self.checker.clients.known(topic, key, counter, "not stored")
                except errors.DeliveryUnknownError:
                    self.log(f"producer-{number}", f"sent {key!r} #{counter}", "outcome unknown")
                else:
                    self.committed[topic][key].append(counter)
                    self.checker.clients.known(topic, key, counter, "stored")

    async def _consume(self, name: str, subscription: str, kind: Any) -> None:
        """Run a consumer program until cancelled; it registers again after it was fenced."""
        rng = self.plan.rng(f"consumer {name}")
        topic = self.others.get(subscription, TOPIC)
        options: dict[str, Any] = {"topic": topic, "subscription": subscription, "type": kind, "name": name}
        options["start"] = "latest" if subscription == DELETED else "earliest"
        # A deleted subscription retains nothing for its readers, and the others' time is short.
        options["behind"] = "continue" if kind == "CHECKPOINT" else "error"
        if self.by_load and subscription == STREAM:
            options |= {"balance": "load", "capacity": rng.choice([0.5, 1.0, 1.0, 3.0])}
        while True:
            self._instances_started += 1
            client = self.client(f"{name}-{self._instances_started}", client_kind(self.plan, name))
            with suppress(errors.FencedError, errors.NoLeaderError):
                async with self.faults.rare.ending_at_damage(name), Consumer(client, **options) as consumer:
                    check = partial(self.checker.check_delivery, topic, subscription, kind, client.client_id)
                    if uses_run(self.plan, name):

                        def done(record: ConsumedRecord, consumer: Consumer = consumer) -> None:
                            self.checker.handled(topic, subscription, record.segment, record.offset)
                            if kind == "CHECKPOINT":
                                options["positions"] = consumer.positions

                        await Handlers(rng, partial(check, handled=False), done).run(consumer)
                    async for record in consumer:
                        check(record)
                        if rng.random() < 0.05:
                            await asyncio.sleep(rng.uniform(0, 0.2))
                        if kind == "CHECKPOINT":
                            # Its next run starts here, so each registration has positions to judge.
                            options["positions"] = consumer.positions
                        else:
                            await consumer.acknowledge(record)
            self.log(name, "registers again")

    async def drained(self, query: DrainQuery) -> DrainedResponse:
        """Answer like the Spark process: late, failing, hanging, or falsely, as one of another ledger."""
        await asyncio.sleep(self.drain_rng.uniform(0.05, 1.0))
        luck = self.drain_rng.random()
        if 0.05 <= luck < 0.1:
            await asyncio.sleep(3600)
        state = self.checker.states[query.shard]
        if state.chunk < query.at_least_chunk:
            return DrainedResponse(id=0)
        try:
            found = self.checker.backlogs.drained_segments(state, query)
        except Exception as error:
            self.fail(error)  # the poller takes it for a check that failed
            raise
        if luck < (0.05 if found else 0.25):  # nothing waits for a check that finds nothing
            raise errors.HeadgateError("the backlog run failed")
        if luck >= 0.85:
            found |= self.checker.backlogs.false_claims(state, query, found)
        return DrainedResponse(id=0, drained=found, watermark=state.chunk)
