"""Workers of a queue whose handlers fail: a program of some simulated worlds, and what must become of their records.

A handler's fate depends on the record: it always fails, fails once or twice, hangs until the time-out, or ends its
worker, without a farewell or with an error. The queue has a dead-letter topic.

1. A delivery count is never above the deliveries that a program was handed: what was not begun is not counted. A worker
   that is lost while it waits for the leader may have begun more.
2. It is never below the deliveries that have failed: a worker that ends with each attempt is counted.
3. In the end each record is either processed, or in the dead-letter topic, and there once: also those of a worker
   that lives, and never asks for another record.
"""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headgate import Admin, ConsumedRecord, Consumer
from headgate.errors import FencedError, HeadgateError, NoLeaderError
from headgate.model import entries as e
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.cluster_plan import MAIN_TOPIC

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

WORK: Final = "work"
GRAVEYARD: Final = "graveyard"
WORKERS, MAX_DELIVERIES = 2, 3
MAX_ENDINGS = 2
"""Records that end their workers: each costs grace periods."""


class WorkerEndedError(Exception):
    """A record has ended its worker."""


async def until_done(command: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a command until a leader has replied."""
    while True:
        try:
            await command()
        except NoLeaderError:
            continue
        except HeadgateError as error:
            if "exists" not in str(error):
                raise
        return


class QueueProgram:
    """The workers of one simulated cluster."""

    def __init__(self, world: "ClusterSimulation") -> None:
        self._world = world
        self._runs = 0
        self._begun: Counter[tuple[int, int]] = Counter()
        """Record → deliveries that a worker was handed."""
        self._failed: Counter[tuple[int, int]] = Counter()
        """Record → deliveries that have certainly failed."""
        self._processed: set[tuple[int, int]] = set()
        self._ending: set[tuple[int, int]] = set()
        self._cuts = 0
        """Workers that ended without a farewell."""
        self._losses = self._searched = 0
        """Losses of workers in the ledger, up to this chunk."""

    async def start(self, rng: random.Random) -> None:
        """Create the queue and start its workers; they end with the run."""
        tasks = self._world.faults.rare.external_tasks
        client = self._world.client("foreman")
        async with client, Admin(client, timeout_seconds=60) as admin:

            async def join() -> None:
                async with Consumer(client, topic=MAIN_TOPIC, subscription=WORK, type="QUEUE", start="earliest"):
                    pass

            await until_done(lambda: admin.create_topic(GRAVEYARD))
            await until_done(join)
            await until_done(
                lambda: admin.set_delivery_policy(
                    MAIN_TOPIC,
                    WORK,
                    max_deliveries=MAX_DELIVERIES,
                    ack_timeout_seconds=10,
                    dead_letter_topic=GRAVEYARD,
                    max_processing_seconds=20,
                )
            )
        alone_seconds = 0
        if rng.random() < 0.5:
            tasks.append(self._world.spawn(self._fall_silent()))
            alone_seconds = rng.choice([0, 40])  # longer than it may take for a record
        tasks += [self._world.spawn(self._work(f"worker-{number}", rng, alone_seconds)) for number in range(WORKERS)]

    async def _fall_silent(self) -> None:
        """Take some records, and then live without ever asking for another one."""
        options = {"topic": MAIN_TOPIC, "subscription": WORK, "type": "QUEUE", "name": "silent"}
        consumer = Consumer(self._world.client("silent"), **options)
        with suppress(NoLeaderError):
            async with self._world.faults.rare.ending_at_damage("silent"), consumer:
                records = await consumer.get_many(5, timeout_seconds=60)
                self._begun.update((each.segment, each.offset) for each in records)
                self._world.log("silent", f"falls silent with {len(records)} records")
                await asyncio.Event().wait()

    async def _work(self, name: str, rng: random.Random, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        checker = self._world.checker
        while True:
            self._runs += 1
            client = self._world.client(f"{name}-{self._runs}")
            # One that is lost is not replaced under its name: its successor waits for the grace period.
            options = {"topic": MAIN_TOPIC, "subscription": WORK, "type": "QUEUE", "name": f"{name}-{self._runs}"}
            with suppress(FencedError, NoLeaderError, WorkerEndedError):
                async with self._world.faults.rare.ending_at_damage(name), Consumer(client, **options) as consumer:
                    while True:
                        most = 50 if self._world.faults.lasting.lasts else rng.choice([1, 5])  # It comes with a burst.
                        records = await consumer.get_many(most, timeout_seconds=5)
                        for record in records:  # Now: its time for a revoked segment may end before it handles all.
                            self._begun[record.segment, record.offset] += 1
                            checker.check_delivery(MAIN_TOPIC, WORK, "QUEUE", client.client_id, record, handled=False)
                        for record in records:
                            await self._handle(consumer, record, client.client_id, rng)
            self._world.log(name, "starts again")

    async def _handle(self, consumer: Consumer, record: ConsumedRecord, client_id: str, rng: random.Random) -> None:
        key = record.segment, record.offset
        self._world.checker.handled(MAIN_TOPIC, WORK, *key)
        unseen = max(0, self._lost_workers() - self._cuts)
        if not self._failed[key] < record.delivery_count <= self._begun[key] + unseen:
            raise BrokenPromiseError(
                f"{WORK}: number {record.delivery_count} of {key} is delivery {self._begun[key]}, and "
                f"{self._failed[key]} have failed"
            )
        fate = zlib.crc32(record.key + record.value) % 100
        if fate < 2 and (key in self._ending or len(self._ending) < MAX_ENDINGS):
            self._ending.add(key)
            self._world.log(client_id, f"ends at {key}")
            if zlib.crc32(record.key) % 2:
                self._cuts += 1
                self._world.broker.cut(client_id)
            self._failed[key] += 1
            raise WorkerEndedError
        if fate < 5 or (fate < 12 and record.delivery_count <= 1 + fate % 2):
            self._failed[key] += 1
            await consumer.negative_acknowledge(record, delay_seconds=rng.choice([0, 0, 2, 20]), reason="unlucky")
        elif fate < 14 and record.delivery_count == 1:
            pass  # It hangs, until the time-out.
        else:
            await asyncio.sleep(rng.choice([0, 0, 0.2]))
            self._processed.add(key)
            await consumer.acknowledge(record)

    def _lost_workers(self) -> int:
        """Return how many workers were lost so far, by no error of their own."""
        subscription = self._world.main_state.topics[MAIN_TOPIC].subscriptions[WORK].subscription_id
        history = self._world.checker.history[self._world.main_shard]
        for entries, _ in history[self._searched :]:
            for entry in entries:
                removed = isinstance(entry, e.ConsumerRemoved) and entry.reason in ("evicted", "replaced")
                late = isinstance(entry, e.SegmentReleased) and entry.reason in ("timed_out", "stalled")
                self._losses += (removed or late) and entry.subscription_id == subscription
        self._searched = len(history)
        return self._losses

    @property
    def is_settled(self) -> bool:
        """Whether every record of the queue is acknowledged."""
        topic = self._world.main_state.topics[MAIN_TOPIC]
        queue = topic.subscriptions.get(WORK)
        return queue is not None and all(queue.position(each) >= tail.next_offset for each, tail in topic.tails.items())

    def check(self) -> None:
        """Raise BrokenPromiseError unless each record was processed, or is in the dead-letter topic once."""
        if not self.is_settled:
            raise BrokenPromiseError(f"{WORK}: not every record is acknowledged")
        records = self._world.checker.stored
        dead, stored = (Counter((each.key, each.value) for each in records[at]) for at in (GRAVEYARD, MAIN_TOPIC))
        left = (each for each in records[MAIN_TOPIC] if (each.segment, each.offset) not in self._processed)
        lost = Counter((each.key, each.value) for each in left)
        for record, times in dead.items():
            if times > stored[record]:
                raise BrokenPromiseError(f"{WORK}: {record} is {times} times in {GRAVEYARD}")
        if missing := lost - dead:
            raise BrokenPromiseError(f"{WORK}: {min(missing)} was not processed, and is not in {GRAVEYARD}")
