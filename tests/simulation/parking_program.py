"""Readers of a STREAM that park keys, and an operator that resumes them: a program of some simulated worlds.

A record fails once or twice, or ends its reader after it has parked its key, which is soon resumed. One world of three
has ``set-order none``: then a key may have several holders, and rule 3 and the first half of rule 2 remain. In another
third, the subscription is moved back: what was parked may be parked again, so rules 1 and 3 remain.

1. The records of each key are processed in order for the first time, over those of the stream and those that were parked.
2. Each parked record is in the dead-letter topic once, and those of a key are there in order, also beside crashes; what
   a device stored twice is there at most twice.
3. In the end each record is processed, and no key is parked.
"""

import asyncio
import random
import zlib
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headgate import Admin, ConsumedRecord, Consumer
from headgate.errors import FencedError, HeadgateError, NoLeaderError
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.cluster_plan import MAIN_TOPIC
from tests.simulation.queue_program import WorkerEndedError, until_done

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

PARKED, CELLAR = "parked", "cellar"
"""The subscription, and its dead-letter topic."""
READERS: Final = 2
MAX_ENDINGS: Final = 3
UNORDERED: Final = 1 / 3
MOVED: Final = 2 / 3
MOVES: Final = 3
"""How often a subscription is moved back: its readers read all chunks again."""


class ParkingProgram:
    """The readers of one simulated cluster, and their operator."""

    def __init__(self, world: "ClusterSimulation") -> None:
        self._world = world
        self._runs = 0
        self._failed: Counter[tuple[bytes, bytes]] = Counter()
        self._processed: dict[bytes, set[int]] = {}
        """Key → its records that were processed."""
        luck = world.plan.rng("order of parked keys").random()
        self._ordered, self._moved = luck >= UNORDERED, luck >= MOVED
        self._moving: asyncio.Task[None] | None = None
        self._endings = 0
        self.resumed = 0
        """Records that were processed after they were parked."""

    async def start(self, rng: random.Random) -> None:
        """Create the subscription and start its readers; they end with the run."""
        client = self._world.client("steward")
        async with client, Admin(client, timeout_seconds=60) as admin:

            async def join() -> None:
                async with Consumer(client, topic=MAIN_TOPIC, subscription=PARKED, start="earliest"):
                    pass

            await until_done(lambda: admin.create_topic(CELLAR))
            await until_done(join)
            await until_done(lambda: admin.set_delivery_policy(MAIN_TOPIC, PARKED, dead_letter_topic=CELLAR))
            if not self._ordered:
                self._world.checker.rules.unordered = PARKED
                await until_done(lambda: admin.set_order(MAIN_TOPIC, PARKED, "none"))
        tasks = self._world.faults.rare.external_tasks
        tasks += [self._world.spawn(self._read(f"parker-{number}", rng)) for number in range(READERS)]
        tasks.append(self._world.spawn(self._resume(rng)))
        if self._moved:
            self._moving = self._world.spawn(self._move(self._world.plan.rng("moves of parked keys")))
            tasks.append(self._moving)

    async def _read(self, name: str, rng: random.Random) -> None:
        while True:
            self._runs += 1
            client = self._world.client(f"{name}-{self._runs}")
            options = {"topic": MAIN_TOPIC, "subscription": PARKED, "name": f"{name}-{self._runs}"}
            with suppress(FencedError, NoLeaderError, WorkerEndedError):
                async with self._world.faults.rare.ending_at_damage(name), Consumer(client, **options) as consumer:
                    async for record in consumer:
                        await self._handle(consumer, record, client.client_id, rng)
            self._world.log(name, "starts again")

    async def _handle(self, consumer: Consumer, record: ConsumedRecord, program: str, rng: random.Random) -> None:
        if not record.parked_number:
            self._world.checker.check_delivery(MAIN_TOPIC, PARKED, "QUEUE", program, record)
        if record.parked_number:
            await asyncio.sleep(rng.choice([0, 2]) if self._world.producing else 0)  # Newer ones are read meanwhile.
        content = record.key, record.value
        fate = zlib.crc32(b"/".join(content)) % 100
        if self._failed[content] < (fate < 12) + (fate < 4):
            self._failed[content] += 1
            self._world.log(program, f"parks {record.key!r} at {record.value!r}")
            await consumer.park(record, reason="unlucky")
            if fate < 2 and self._endings < MAX_ENDINGS:
                self._endings += 1
                self._world.broker.cut(program)
                raise WorkerEndedError
            return
        await asyncio.sleep(rng.choice([0, 0, 0.2]))
        self._process(record)
        await consumer.acknowledge(record)

    def _process(self, record: ConsumedRecord) -> None:
        """Rule 1. A device's record may be stored twice, so one that was processed may come again."""
        known, counter = self._processed.setdefault(record.key, set()), int(record.value)
        if self._ordered and counter not in known and known and counter < max(known):
            raise BrokenPromiseError(f"{PARKED}: {record.key!r} #{counter} is processed after #{max(known)}")
        self.resumed += bool(record.parked_number) and counter not in known
        known.add(counter)

    async def _resume(self, rng: random.Random) -> None:
        while True:
            client = self._world.client("operator")
            with suppress(NoLeaderError):
                async with client, Admin(client, timeout_seconds=10) as admin:
                    while True:
                        await asyncio.sleep(rng.choice([1, 1, 30]) * rng.random())
                        with suppress(HeadgateError):
                            for each in await admin.parked_keys(MAIN_TOPIC, PARKED):
                                if not each.is_resuming:
                                    await admin.resume_key(MAIN_TOPIC, PARKED, each.key)

    async def _move(self, rng: random.Random) -> None:
        """Move the subscription back in one segment, while keys of it are parked and resumed."""
        for number in range(MOVES):
            await asyncio.sleep(rng.uniform(5, 40))
            if not self._world.producing:
                return
            topic = self._world.main_state.topics[MAIN_TOPIC]
            segment = rng.choice(sorted(topic.layout.segments))
            to = rng.randint(0, topic.subscriptions[PARKED].position(segment))
            self._world.log("mover", f"moves {PARKED} back in segment {segment} to {to}")
            with suppress(HeadgateError):
                async with self._world.client(f"mover-{number}") as client, Admin(client, timeout_seconds=10) as admin:
                    await admin.seek(MAIN_TOPIC, PARKED, positions={segment: to})

    @property
    def is_settled(self) -> bool:
        """Whether every record is acknowledged, no key is parked, and no move is under way."""
        topic = self._world.main_state.topics[MAIN_TOPIC]
        stream = topic.subscriptions.get(PARKED)
        return (
            stream is not None
            and (self._moving is None or self._moving.done())
            and not stream.redelivery.parked.keys
            and all(stream.position(each) >= tail.next_offset for each, tail in topic.tails.items())
        )

    def check(self) -> None:
        """Raise BrokenPromiseError unless the rules hold at the end."""
        if not self.is_settled:
            raise BrokenPromiseError(f"{PARKED}: not every record is acknowledged and resumed")
        checker = self._world.checker
        for each in checker.stored[MAIN_TOPIC]:
            if int(each.value) not in self._processed.get(each.key, set()):
                raise BrokenPromiseError(f"{PARKED}: {each.key!r} {each.value!r} was not processed")
        if self._moved:
            return
        stored = Counter((each.key, each.value) for each in checker.stored[MAIN_TOPIC])
        parked: Counter[tuple[bytes, bytes]] = Counter()
        newest: dict[bytes, int] = {}
        for each in checker.stored[CELLAR]:
            content, counter = (each.key, each.value), int(each.value)
            parked[content] += 1
            if parked[content] > stored[content]:
                raise BrokenPromiseError(f"{PARKED}: {each.key!r} #{counter} is in {CELLAR} more than once")
            # A device's record that is stored again follows later ones there, and therefore here.
            if self._ordered and stored[content] == 1 and counter < newest.get(each.key, -1):
                raise BrokenPromiseError(f"{PARKED}: {each.key!r} #{counter} is in {CELLAR} after a later one")
            newest[each.key] = max(counter, newest.get(each.key, -1))
