"""Programs that few simulated worlds have: each makes a situation that the other faults make too seldom to be found.

* ``inspector``: a reader of a queue that acknowledges some segments late, and is away for a while. So segments have
  unread records long after they were sealed, and subscriptions have no consumer.
* ``late_pushes``: what leaders send to consumers about their segments arrives late, twice, or after later messages.
* ``late_pipeline``: a producer's batches are late. The repetition of the first one meets a topic that is deleted, and
  the late copies meet one of the same name that was created since.
* ``cut_producer``: a producer loses the broker before the reply to a batch, until the leader has forgotten it: others
  open producers meanwhile. Only the import program's world has so many.
* ``newcomers``: producers that start while messages are lost, and have no leader that they could doubt.
* ``workers``: a queue whose handlers fail (`tests.simulation.queue_program`).
* ``parkers``: a stream whose handlers park keys (`tests.simulation.parking_program`).
* ``lasting``: a fault that stays (`tests.simulation.lasting_faults`).
* ``settings``: no program, but settings that are drawn (`tests.simulation.drawn_settings`).
* ``growth``: the cluster gets more shards (`tests.simulation.growth_program`).
* ``inquirer``: a program asks what the cluster says about itself (`tests.simulation.inquirer`).
* ``rebirth``: topics are deleted and created again (`tests.simulation.rebirth_program`).
* ``upgrade``: daemons of the version before are replaced one by one (`tests.simulation.upgrade_program`).
* ``tenants``: users with small quotas (`tests.simulation.tenants_program`).
* ``hotspots``: topics that are busy where a split does not help (`tests.simulation.hotspot_program`).
* ``slow_contender``: daemons that are slow when they get the lock, so that the last leader writes on meanwhile.
* ``moved_clocks``: clocks of daemons that are set, and stay so for longer than daemons wait before they follow.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headgate import Admin, Consumer, Delivery, Producer, errors
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.protocol import codec
from headgate.protocol.replies import AssignmentChanged, Committed, ProducerIdentity
from headgate.protocol.requests import ProduceBatch
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.cluster_plan import MAIN_TOPIC
from tests.simulation.growth_program import GrowthProgram
from tests.simulation.hotspot_program import HotspotProgram
from tests.simulation.inquirer import Inquirer
from tests.simulation.parking_program import ParkingProgram
from tests.simulation.queue_program import QueueProgram
from tests.simulation.rebirth_program import RebirthProgram
from tests.simulation.tenants_program import TenantsProgram
from tests.simulation.upgrade_program import UpgradeProgram
from tests.support.fakes.broker import FakeBroker, Faults, Message

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

INSPECTION: Final = "inspection"
LATE: Final = "late"
"""Sender of the copies of messages that arrive late."""
LATE_SECONDS: Final = 20.0
CUT_PRODUCER: Final = "producer-0"
PIPELINE: Final = "pipeline"
"""The producer whose batches are late, and its topic."""
PIPELINES, CUTS, NEWCOMERS, CONTENDERS = 2, 1, 2, 2
"""How often each program acts in a run: a burst of records costs time."""
FORGOTTEN_SECONDS: Final = 8.0, 11.0
"""How long a producer is cut: the programs beside it open more producers than the shard keeps."""
SLOW_SECONDS: Final = 0.1, 0.6
"""Duration of each access of a slow contender."""
CONTENDING_SECONDS: Final = 10.0
CLOCK_MOVES_MS: Final = -3_600_000, -60_000, 60_000, 1_800_000, 86_400_000


class LateRequests:
    """Requests of the pipeline that are on the way to the leader, and the first replies to them, which are lost."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._others = broker.rewrite
        self._held: list[Message] = []
        self._passing: int | None = None
        """How many batches pass before the others are held; None: all requests pass."""
        self._losses = 0
        """How many replies to batches are lost."""
        broker.rewrite = self._rewrite

    def hold(self) -> None:
        """Hold all requests from now on."""
        self._passing = 0

    def pass_next(self) -> None:
        """Let one batch pass, and hold all requests after it."""
        self._passing = 1

    def release(self) -> None:
        """Deliver what was held, in order."""
        self._passing, self._losses = None, len(self._held)
        for message in self._held:
            self._broker.route(message)
        self._held.clear()

    def _rewrite(self, message: Message) -> Message | None:
        if self._losses and message.topic.endswith(f"/{PIPELINE}/replies"):
            body = getattr(codec.decode_reply(message.payload), "body", None)
            self._losses = 0 if isinstance(body, ProducerIdentity) else self._losses - 1
            return None if isinstance(body, Committed) else message
        if message.sender != PIPELINE or "/requests/" not in message.topic or self._passing is None:
            return message if self._others is None else self._others(message)
        if self._passing:
            self._passing -= isinstance(codec.decode_request(message.payload).body, ProduceBatch)
            return message
        self._held.append(replace(message, sender=LATE))
        return None


class RarePrograms:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._runs = 0
        self.queue = QueueProgram(world)
        self.parking = ParkingProgram(world)
        self.growth = GrowthProgram(world)
        self.rebirth = RebirthProgram(world)
        self.upgrade = UpgradeProgram(world)
        self.tenants = TenantsProgram(world)
        self._waiting: set[str] = set()
        """Newcomers whose record is not committed yet, and a pipeline whose records have no outcome yet."""

    def start(self) -> list[asyncio.Task[None]]:
        """Start those of the plan, and return the tasks that end with the faults."""
        programs: dict[str, Callable[[random.Random], Coroutine[Any, Any, None]]] = {
            "inspector": self._inspect,
            "late_pushes": self._delay_pushes,
            "late_pipeline": self._start_pipeline,
            "cut_producer": self._cut_producer,
            "newcomers": self._start_newcomers,
            "slow_contender": self._slow_contenders,
            "workers": self.queue.start,
            "parkers": self.parking.start,
            "growth": self.growth.start,
            "rebirth": self.rebirth.start,
            "upgrade": self.upgrade.start,
            "tenants": self.tenants.start,
            "hotspots": HotspotProgram(self._world).start,
            "inquirer": Inquirer(self._world).run,
            "moved_clocks": self._move_clocks,
        }
        plan = self._world.plan
        tasks = {
            name: self._world.spawn(run(plan.rng(name))) for name, run in programs.items() if name in plan.programs
        }
        # Those that process every record may have to wait for a leader to begin.
        return [
            task for name, task in tasks.items() if name not in ("workers", "parkers", "rebirth", "upgrade", "tenants")
        ]

    @property
    def is_settled(self) -> bool:
        """Whether every newcomer has sent its record, and every pipeline has its outcomes."""
        return not self._waiting and all(each.is_settled for each in self._handlers)

    def check(self) -> None:
        """Raise BrokenPromiseError unless `is_settled`."""
        if self._waiting:
            raise BrokenPromiseError(f"{sorted(self._waiting)} never sent a record, although all faults ended")
        for each in self._handlers:
            each.check()

    @property
    def _handlers(self) -> list[QueueProgram | ParkingProgram | RebirthProgram | TenantsProgram]:
        programs = {"workers": self.queue, "parkers": self.parking, "rebirth": self.rebirth, "tenants": self.tenants}
        return [each for name, each in programs.items() if name in self._world.plan.programs]

    # The inspector

    async def _inspect(self, rng: random.Random) -> None:
        """Read, acknowledge every second segment late, and leave; again and again."""
        while True:
            self._runs += 1
            client = self._world.client(f"inspector-{self._runs}")
            with suppress(TimeoutError, errors.FencedError, errors.NoLeaderError):
                async with (
                    self._world.faults.rare.ending_at_damage("inspector"),
                    asyncio.timeout(rng.uniform(20, 90)),
                    Consumer(
                        client,
                        topic=MAIN_TOPIC,
                        subscription=INSPECTION,
                        type="QUEUE",
                        name="inspector",
                        start="earliest",
                    ) as consumer,
                ):
                    await self._read(consumer, client.client_id, rng.choice([0, 1, 2]))
            self._world.log("inspector", "is away")
            await asyncio.sleep(rng.choice([1, rng.uniform(15, 60)]))

    async def _read(self, consumer: Consumer, program: str, rest: int) -> None:
        """Acknowledge no segments whose number modulo 2 is ``rest``: none of them is 2."""
        async for record in consumer:
            self._world.checker.check_delivery(MAIN_TOPIC, INSPECTION, "QUEUE", program, record)
            if record.segment % 2 != rest:
                await consumer.acknowledge(record)

    # Pushes

    async def _delay_pushes(self, rng: random.Random) -> None:
        """Delay and double what leaders send to consumers about their segments."""
        broker = self._world.broker

        def rewrite(message: Message) -> Message | None:
            if message.sender == LATE or not message.topic.endswith("/replies"):
                return message
            if not isinstance(codec.decode_reply(message.payload), AssignmentChanged):
                return message
            luck = rng.random()
            if luck < 1 / 2:
                copied = replace(message, sender=LATE)
                asyncio.get_running_loop().call_later(rng.uniform(0, LATE_SECONDS), broker.route, copied)
            return None if luck < 1 / 6 else message

        self._world.log("broker", "delays and doubles pushes")
        broker.rewrite = rewrite

    # Producers

    async def _cut_producer(self, rng: random.Random) -> None:
        """Cut a producer from the broker while its batch is on the way to the leader."""
        world, sent = self._world, asyncio.Event()

        def overhear(message: Message) -> None:
            if message.sender == CUT_PRODUCER and "/requests/" in message.topic and not sent.is_set():
                body = codec.decode_request(message.payload).body
                if isinstance(body, ProduceBatch):
                    sent.set()

        world.broker.spies.append(overhear)
        for _ in range(CUTS):
            await asyncio.sleep(rng.uniform(5, 40))
            seconds = rng.uniform(*FORGOTTEN_SECONDS)
            world.start_burst(seconds)
            sent.clear()
            await sent.wait()
            world.log(CUT_PRODUCER, "loses the broker")
            world.broker.cut(CUT_PRODUCER)
            try:
                await asyncio.sleep(seconds)
            finally:
                world.broker.heal(CUT_PRODUCER)

    async def _start_pipeline(self, rng: random.Random) -> None:
        self._waiting.add(PIPELINE)
        self._world.faults.rare.external_tasks.append(self._world.spawn(self._delay_pipeline(rng)))

    async def _delay_pipeline(self, rng: random.Random) -> None:
        """Deliver batches after their topic was deleted and created again, and before the next opening."""
        world, late = self._world, LateRequests(self._world.broker)
        settings = ProducerSettings(batch_bytes=1, request_timeout_seconds=2, delivery_timeout_seconds=3600)
        sent: list[tuple[int, Delivery]] = []
        async with (
            Producer(world.client(PIPELINE), settings=settings) as producer,
            Admin(world.client(f"{PIPELINE}-admin"), timeout_seconds=60) as admin,
        ):

            async def send(records: int) -> None:
                for _ in range(records):
                    sent.append((len(sent), await producer.send(PIPELINE, b"key", b"%d" % len(sent))))

            for _ in range(PIPELINES):
                await asyncio.sleep(rng.uniform(5, 40))
                with suppress(errors.HeadgateError):
                    await admin.create_topic(PIPELINE)
                await send(1)
                with suppress(errors.HeadgateError):
                    await sent[-1][1]
                world.log(PIPELINE, "its batches are late, and its topic is deleted and created again")
                late.hold()
                await send(3)
                await asyncio.sleep(1)
                late.pass_next()
                with suppress(errors.HeadgateError):
                    await admin.delete_topic(PIPELINE)
                await asyncio.sleep(rng.uniform(2, 6))
                with suppress(errors.HeadgateError):
                    await admin.create_topic(PIPELINE)
                late.release()
            for number, delivery in sent:
                with suppress(errors.DeliveryUnknownError):
                    try:
                        await delivery
                    except (errors.DeliveryFailedError, errors.RequestRejectedError):
                        world.not_stored[PIPELINE][b"key"].append(number)
                    else:
                        world.committed[PIPELINE][b"key"].append(number)
            await admin.delete_topic(PIPELINE)
        self._waiting.discard(PIPELINE)

    async def _start_newcomers(self, rng: random.Random) -> None:
        """Start producers while messages are lost."""
        world = self._world
        for number in range(NEWCOMERS):
            await asyncio.sleep(rng.uniform(5, 60))
            name = f"newcomer-{number}"
            self._waiting.add(name)
            world.broker.faults = Faults(loss=0.5)
            world.faults.rare.external_tasks.append(world.spawn(self._send_one(name)))
            world.log(name, "starts while messages are lost")
            await asyncio.sleep(rng.uniform(1, 3))
            world.broker.faults = Faults()

    async def _send_one(self, name: str) -> None:
        settings = ProducerSettings(request_timeout_seconds=2, delivery_timeout_seconds=3600)
        async with Producer(self._world.client(name), settings=settings) as producer:
            await producer.send_and_wait(MAIN_TOPIC, name.encode(), b"0")
        self._world.committed[MAIN_TOPIC][name.encode()].append(0)
        self._waiting.discard(name)

    # Daemons

    async def _slow_contenders(self, rng: random.Random) -> None:
        """Let a leader lose the lock to daemons whose store is slow."""
        world = self._world
        for _ in range(CONTENDERS):
            await asyncio.sleep(rng.uniform(5, 40))
            leader = next((each for each in world.daemons if world.main_shard in each.led and not each.frozen), None)
            if leader is None:
                continue
            slow = [each.store for each in world.daemons if each is not leader]
            usual = [store.latency_seconds for store in slow]
            for store in slow:
                store.latency_seconds = SLOW_SECONDS
            world.log(leader.name, "its session expires, and other daemons are slow")
            world.start_burst(CONTENDING_SECONDS)
            world.zookeeper.expire_session(leader.name)
            try:
                await asyncio.sleep(CONTENDING_SECONDS)
            finally:
                for store, latency_seconds in zip(slow, usual, strict=True):
                    store.latency_seconds = latency_seconds

    async def _move_clocks(self, rng: random.Random) -> None:
        """Set the clocks of some daemons, or of all, until the faults end. Times and ages may be too high from then on."""
        self._world.checker.fastest_clock = self._world.checker.rules.clock_set_at = math.inf
        while True:
            await asyncio.sleep(rng.uniform(5, 60))
            by_ms, daemons = rng.choice(CLOCK_MOVES_MS), self._world.daemons
            for daemon in rng.sample(daemons, rng.randint(0, len(daemons))):
                daemon.clock_ahead_ms += by_ms
                self._world.log(daemon.name, f"its clock is set by {by_ms / 1000:+.0f} s")
