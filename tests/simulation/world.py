"""A whole cluster in one loop and in virtual time: real daemons, producers and consumers on simulated servers.

What is real: leadership, reigns, verdicts, state, group commit, coordinators with gate, target, handover and poller, the
producer session, the client library. What is simulated: ZooKeeper, the broker, the store, Spark's answer, the network
and the clock. One seed decides everything, so a run repeats exactly.

The weather of a run: daemons that crash or freeze, a broker that restarts, messages that are lost, doubled or overtaken,
ZooKeeper away, sessions expired, a store that fails or does not say whether it wrote. Meanwhile topics split and merge,
consumers join, leave and vanish. A `Witness` sees every write and every delivery, and stops the run at the first broken
promise.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import structlog

from coordinator.subscription import Subscription
from headgate import Admin, Consumer, Producer
from headgate.client import Client
from headgate.errors import (
    FencedError,
    HeadgateError,
    NoLeaderError,
    NotStoredError,
    OutcomeUnknownToProducerError,
)
from headgate.producer import ProducerSettings
from tests.fakes.broker import FakeBroker, Faults
from tests.fakes.store import FakeStore
from tests.fakes.zookeeper import FakeZooKeeper
from tests.simulation.simulated_daemon import CLUSTER, SimulatedDaemon, now_ms
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.witness import BrokenPromiseError, Witness, WitnessedObjects

TOPIC = "orders"
STREAM, QUEUE = "billing", "alarms"
KEYS = 12
SETTLE_SECONDS = 900.0
"""Virtual time that a healed cluster has to deliver everything."""


class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, *, store_kind: type[FakeStore] = FakeStore) -> None:
        self.rng = random.Random(seed)
        self.witness = Witness()
        self.objects = WitnessedObjects(self.witness)
        self.broker = FakeBroker(random.Random(seed + 1))
        self.zookeeper = FakeZooKeeper(random.Random(seed + 2), session_timeout_seconds=6)
        self.store_kind = store_kind
        self.daemons: list[SimulatedDaemon] = []
        self.consumers: dict[str, asyncio.Task[None]] = {}
        self.committed: dict[bytes, list[int]] = defaultdict(list)
        self.not_stored: dict[bytes, list[int]] = defaultdict(list)
        self.producing = True
        self._lives = 0
        self._names = 0
        self._failure: asyncio.Future[None] | None = None

    def store(self) -> FakeStore:
        """Return one more client of the bucket."""
        return self.store_kind(random.Random(self.rng.random()), objects=self.objects, latency_seconds=(0.001, 0.02))

    def client(self, client_id: str) -> Client:
        """Return one more program's connection, not yet entered."""
        return Client(
            transport=self.broker.transport(client_id, will=Client.will(CLUSTER, client_id)),
            store=self.store(),
            cluster=CLUSTER,
            client_id=client_id,
            now_ms=now_ms,
            rng=random.Random(self.rng.random()),
        )

    def fail(self, error: BaseException) -> None:
        """End the run with ``error``."""
        assert self._failure is not None
        if not self._failure.done():
            self._failure.set_exception(error)

    def tell(self, what: str) -> None:
        """Add a line to the story that a failed run prints."""
        self.witness.story.append(f"{asyncio.get_running_loop().time():8.2f} s  {what}")

    # --- the run ------------------------------------------------------------------------------------------------------

    async def run(self, *, storms: int) -> None:
        """Play ``storms`` pieces of weather, heal, and check that every promise was kept."""
        self._failure = asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(self._play(storms))
        try:
            await asyncio.wait({playing, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                await self._failure
            await playing
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            self._failure.cancel()

    async def _play(self, storms: int) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                self._start_daemon()
            stack.push_async_callback(self._end_everything)
            admin = await stack.enter_async_context(Admin(self.client("admin")))
            await admin.create_topic(TOPIC, segments=2)
            for _ in range(3):
                self._start_consumer(STREAM, "STREAM")
            self._start_consumer(QUEUE, "QUEUE")
            producers = [self._spawn(self._produce(number)) for number in range(2)]
            for _ in range(storms):
                await asyncio.sleep(self.rng.uniform(0.2, 6))
                await self._storm(admin)
            await self._heal()
            self.producing = False
            for producer in producers:
                await producer
            await self._until_delivered()
            self._check()

    def _check(self) -> None:
        self.witness.nothing_lost(TOPIC, self.committed)
        held = {(record.key, int(record.value)) for record in self.witness.stored[TOPIC]}
        for key, counters in self.not_stored.items():
            if wrong := [counter for counter in counters if (key, counter) in held]:
                raise BrokenPromiseError(f"{key!r} {wrong[:5]} were called not stored, and are")
        for subscription in (STREAM, QUEUE):
            self.witness.everything_delivered(TOPIC, subscription)

    async def _until_delivered(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS
        while loop.time() < deadline:
            stored = len(self.witness.stored[TOPIC])
            if all(len(self.witness.delivered[TOPIC, name]) == stored for name in (STREAM, QUEUE)):
                return
            await asyncio.sleep(1)
        self.tell("gave up waiting for the last deliveries")

    async def _end_everything(self) -> None:
        self.producing = False
        for task in list(self.consumers.values()):
            task.cancel()
        await asyncio.gather(*self.consumers.values(), return_exceptions=True)
        for daemon in self.daemons:
            await daemon.crash()

    # --- the cast -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(
            lambda done: None if done.cancelled() or not done.exception() else self.fail(done.exception())
        )
        return task

    def _start_daemon(self) -> None:
        self._lives += 1
        daemon = SimulatedDaemon(self, f"d{self._lives}")
        self.daemons.append(daemon)
        daemon.start()
        self.tell(f"daemon {daemon.name} starts")

    def _start_consumer(self, subscription: str, kind: str) -> None:
        self._names += 1
        name = f"{subscription}-{self._names}"
        self.consumers[name] = self._spawn(self._consume(name, subscription, kind))
        self.tell(f"consumer {name} joins")

    async def _produce(self, number: int) -> None:
        counters: dict[bytes, int] = defaultdict(int)
        waiting: list[tuple[bytes, int, Any]] = []
        settings = ProducerSettings(linger_seconds=0.01, request_timeout_seconds=2, delivery_timeout_seconds=120)
        async with Producer(self.client(f"producer-{number}"), settings=settings) as producer:
            while self.producing:
                for _ in range(self.rng.randint(1, 6)):
                    key = b"%d/%d" % (number, self.rng.randrange(KEYS))
                    counter = counters[key]
                    counters[key] += 1
                    delivery = await producer.send(TOPIC, key, b"%d" % counter)
                    waiting.append((key, counter, delivery))
                await asyncio.sleep(self.rng.uniform(0.05, 1.0))
            for key, counter, delivery in waiting:
                try:
                    await delivery
                except NotStoredError:
                    self.not_stored[key].append(counter)
                except OutcomeUnknownToProducerError:
                    self.tell(f"outcome of {key!r} #{counter} unknown")
                else:
                    self.committed[key].append(counter)

    async def _consume(self, name: str, subscription: str, kind: Any) -> None:
        """A program that goes on until it is cancelled; one that is fenced joins again, as an operator would have it."""
        while True:
            self._lives += 1
            client = self.client(f"{name}-{self._lives}")
            with suppress(FencedError, NoLeaderError):
                async with Consumer(
                    client, topic=TOPIC, subscription=subscription, type=kind, name=name, start="earliest"
                ) as consumer:
                    async for record in consumer:
                        self.witness.received(
                            TOPIC, subscription, kind, record.segment, record.offset, record.key, record.value
                        )
                        if self.rng.random() < 0.05:
                            await asyncio.sleep(self.rng.uniform(0, 0.2))
                        await consumer.acknowledge(record)
            self.tell(f"consumer {name} has to join again")

    async def check_drained(
        self, shard: int, subscription: Subscription, segments: frozenset[int], newest: int
    ) -> frozenset[int]:
        """Spark's part: late, sometimes failing, sometimes hanging, never ahead of the ledger."""
        await asyncio.sleep(self.rng.uniform(0.05, 1.0))
        luck = self.rng.random()
        if luck < 0.05:
            raise HeadgateError("the backlog run failed")
        if luck < 0.07:
            await asyncio.sleep(3600)
        state = self.witness.states[shard]
        known = state.subscriptions.get(subscription.subscription_id)
        if known is None or state.chunk < newest:
            return frozenset()
        layout = state.topics_by_id[known.topic_id].layout
        return frozenset(
            segment
            for segment in segments
            if (end := layout.segments[segment].end_offset) is not None and known.position(segment) >= end
        )

    # --- the weather --------------------------------------------------------------------------------------------------

    async def _storm(self, admin: Admin) -> None:
        storms: list[Callable[[Admin], Awaitable[None]]] = [
            self._split,
            self._split,
            self._merge,
            self._crash_leader,
            self._freeze_leader,
            self._restart_broker,
            self._noisy_network,
            self._zookeeper_outage,
            self._expire_session,
            self._store_trouble,
            self._consumer_joins,
            self._consumer_leaves,
            self._consumer_vanishes,
            self._daemon_stops,
        ]
        await self.rng.choice(storms)(admin)

    async def _command(self, command: Awaitable[Any], what: str) -> None:
        """Carry out a command; a cluster without a leader may refuse it."""
        try:
            await command
        except HeadgateError as error:
            self.tell(f"{what} failed: {error}")
        else:
            self.tell(what)

    def _active(self) -> list[int]:
        topic = self.witness.states[0].topics[TOPIC]
        return [segment.segment_id for segment in sorted(topic.layout.active(), key=lambda s: s.first_hash)]

    async def _split(self, admin: Admin) -> None:
        segment = self.rng.choice(self._active())
        await self._command(admin.split(TOPIC, segment), f"split {segment}")

    async def _merge(self, admin: Admin) -> None:
        active = self._active()
        if len(active) > 1:
            low = self.rng.randrange(len(active) - 1)
            await self._command(
                admin.merge(TOPIC, active[low], active[low + 1]), f"merge {active[low]} {active[low + 1]}"
            )

    def _leader(self) -> SimulatedDaemon:
        leading = [daemon for daemon in self.daemons if daemon.leads]
        return leading[0] if leading else self.rng.choice(self.daemons)

    async def _crash_leader(self, _: Admin) -> None:
        leader = self._leader()
        self.tell(f"daemon {leader.name} crashes")
        self.daemons.remove(leader)
        await leader.crash()
        self._start_daemon()

    async def _freeze_leader(self, _: Admin) -> None:
        leader = self._leader()
        if leader.frozen:
            return
        self.tell(f"daemon {leader.name} freezes")
        leader.freeze()
        self._later(self.rng.uniform(1, 20), lambda: self._thaw(leader))

    def _thaw(self, daemon: SimulatedDaemon) -> None:
        if daemon in self.daemons and daemon.frozen:
            self.tell(f"daemon {daemon.name} thaws")
            daemon.thaw()

    async def _daemon_stops(self, _: Admin) -> None:
        daemon = self.rng.choice(self.daemons)
        if daemon.frozen:
            return
        self.tell(f"daemon {daemon.name} is told to stop")
        self.daemons.remove(daemon)
        self._start_daemon()
        await daemon.stop()

    async def _restart_broker(self, _: Admin) -> None:
        self.tell("the broker stops")
        self.broker.stop()
        self._later(self.rng.uniform(0.5, 15), self.broker.start)

    async def _noisy_network(self, _: Admin) -> None:
        self.tell("messages are lost, doubled and overtaken")
        self.broker.faults = Faults(
            delay_seconds=(0.001, 0.3), loss=0.1, duplication=0.1, reorder=self.rng.random() < 0.5
        )
        self._later(self.rng.uniform(2, 10), self._calm_network)

    def _calm_network(self) -> None:
        self.broker.faults = Faults()

    async def _zookeeper_outage(self, _: Admin) -> None:
        self.tell("ZooKeeper goes away")
        self.zookeeper.stop()
        self._later(self.rng.uniform(1, 30), self.zookeeper.start)

    async def _expire_session(self, _: Admin) -> None:
        daemon = self._leader()
        self.tell(f"the session of {daemon.name} expires")
        self.zookeeper.expire_session(daemon.name)

    async def _store_trouble(self, _: Admin) -> None:
        store = self._leader().store
        fault: Any = self.rng.choice(["unavailable", "unknown_written", "unknown_lost"])
        self.tell(f"the leader's next write is {fault}")
        store.fail_next(fault)

    async def _consumer_joins(self, _: Admin) -> None:
        self._start_consumer(STREAM, "STREAM")

    async def _consumer_leaves(self, _: Admin) -> None:
        streams = [name for name in self.consumers if name.startswith(STREAM)]
        if len(streams) > 1:
            name = self.rng.choice(streams)
            self.tell(f"consumer {name} leaves")
            task = self.consumers.pop(name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _consumer_vanishes(self, _: Admin) -> None:
        streams = [name for name in self.consumers if name.startswith(STREAM)]
        if len(streams) > 1:
            name = self.rng.choice(streams)
            self.tell(f"consumer {name} vanishes")
            for client_id in self.broker.connected():
                if client_id.startswith(f"{name}-"):
                    self.broker.cut(client_id)
            task = self.consumers.pop(name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    async def _heal(self) -> None:
        """End all weather."""
        await asyncio.sleep(31)
        self._calm_network()
        self.broker.start()
        self.zookeeper.start()
        for daemon in self.daemons:
            if daemon.frozen:
                self._thaw(daemon)
        self.tell("the weather is over")


def run_seed(seed: int, *, storms: int = 10, store_kind: type[FakeStore] = FakeStore) -> Witness:
    """Run one world to its end in virtual time and return what was seen.

    Raises BrokenPromiseError or whatever a bug raised, with the run's story as a note.
    """
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    loop = VirtualLoop()
    world = World(seed, store_kind=store_kind)
    try:
        loop.run_until_complete(world.run(storms=storms))
    except BaseException as error:
        error.add_note(f"seed {seed}; the last of the story:\n" + "\n".join(world.witness.story[-60:]))
        raise
    finally:
        _end_all(loop)
        loop.close()
    return world.witness


def _end_all(loop: VirtualLoop) -> None:
    """End whatever a failed run left running."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=600))
