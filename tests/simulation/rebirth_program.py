"""Topics that are deleted and created again under their names, beside everything that remembers them: some simulated worlds.

`PHOENIX` has a named producer that continues at its source position, an anonymous one, and a reader of each type. `ASHES`
has the dead letters of two of them. Whatever is remembered of one life of a topic must not be applied to the next one:

1. Of each life, the named producer's records are there once each, in order and without a gap.
2. A record that was reported as stored is stored, and one that was reported as not stored is not.
3. A reader with its own positions skips no record of a life.
4. STREAM processes the records of a life in the order of the ledger for the first time, per key, also parked ones.
5. In the end each record of the last life is processed, or was parked in dead letters that were deleted. A dead letter is
   once in each life of their topic.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections import Counter, defaultdict, deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headgate import Admin, ConsumedRecord, Consumer, Delivery, Producer, errors
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.model.headers import origin_of
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.queue_program import until_done

if TYPE_CHECKING:
    from shard.state.topic import Topic
    from tests.simulation.world import ClusterSimulation

PHOENIX, ASHES = "phoenix", "ashes"
KINDS: Final = {"stream": "STREAM", "queue": "QUEUE", "own": "CHECKPOINT"}
POLICIES: Final[dict[str, dict[str, Any]]] = {"stream": {}, "queue": {"max_deliveries": 2}}
NAMED: Final = b"named"
SETTINGS: Final = ProducerSettings(request_timeout_seconds=2, delivery_timeout_seconds=20, batch_bytes=200)


class RebirthProgram:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._numbers = itertools.count()
        """Of programs and of values."""
        self._outcomes: dict[bytes, bool] = {}
        """Value → whether it is stored, as its sender knows."""
        self._places: dict[bytes, tuple[int, int]] = {}
        """Value → (id of the topic's life, its place in the ledger)."""
        self._processed: dict[str, set[bytes]] = defaultdict(set)
        self._last: dict[tuple[int, bytes], int] = {}
        """STREAM: (life, key) → the last record that was processed for the first time."""
        self._read_to: Counter[tuple[int, int]] = Counter()
        """CHECKPOINT: (life, segment) → how far it was read without a gap."""
        self._failed: set[tuple[str, bytes]] = set()
        self._parked: set[bytes] = set()
        """Keys that were parked at some time."""
        self._positions: str | None = None
        self._pending: list[asyncio.Task[None]] = []
        """What ends without a cancellation, once faults have ended."""
        self.lives: Counter[str] = Counter()

    async def start(self, rng: random.Random) -> None:
        works = self._rule, self._produce, self._import, self._resume
        begun = [until_done(partial(work, random.Random(rng.random()))) for work in works]  # The broker may be down.
        *self._pending, healer = map(self._world.spawn, begun)
        readers = [self._consume(name, number, rng) for name in KINDS for number in range(1 + (name == "stream"))]
        tasks = [healer, *map(self._world.spawn, readers)]
        self._world.faults.rare.external_tasks += [*self._pending, *tasks]

    # The operator

    async def _rule(self, rng: random.Random) -> None:
        """Delete topics, create them again, and split them, until the faults end; then leave them as they should be."""
        keeps_letters = rng.random() < 0.5
        async with self._world.client("ruler") as client, Admin(client, timeout_seconds=60) as admin:
            while True:
                for name in (ASHES, PHOENIX):
                    await until_done(lambda name=name: admin.create_topic(name, rng.choice([1, 2])))  # type: ignore[misc]
                for name in KINDS:
                    await until_done(lambda name=name: self._subscribe(admin, name))  # type: ignore[misc]
                if not self._world.producing:
                    return
                await self._world.pause(rng, 1, rng.choice([5, 30]))
                name = rng.choice([PHOENIX, PHOENIX if keeps_letters else ASHES])
                with suppress(errors.RequestRejectedError, errors.NoLeaderError):
                    if rng.random() < 0.4:
                        segments = (await admin.describe_topic(name)).segments
                        active = [each for each in segments if each.state == "active"]
                        await admin.split(name, rng.choice(active).segment)
                        continue
                    self._world.log("ruler", f"deletes {name}")
                    self.lives[name] += 1
                    await until_done(lambda name=name: admin.delete_topic(name, force=True))  # type: ignore[misc]
                await asyncio.sleep(rng.choice([0, 0, 4]))

    async def _subscribe(self, admin: Admin, name: str) -> None:
        await admin.create_subscription(PHOENIX, name, type=KINDS[name], start="earliest", if_absent=True)
        if name in POLICIES:
            await admin.set_delivery_policy(PHOENIX, name, dead_letter_topic=ASHES, **POLICIES[name])

    async def _resume(self, rng: random.Random) -> None:
        """Resume parked keys; drop some whose records were deleted."""
        async with self._world.client("healer") as client, Admin(client, timeout_seconds=60) as admin:
            while True:
                await asyncio.sleep(rng.choice([1, 20]) * rng.random())
                with suppress(errors.HeadgateError):
                    for each in await admin.parked_keys(PHOENIX, "stream"):
                        drops = self.lives[ASHES] > 0 and rng.random() < 0.2
                        if drops or not each.is_resuming:
                            await admin.resume_key(PHOENIX, "stream", each.key, drop=drops)

    # Producers

    async def _produce(self, rng: random.Random) -> None:
        sent: list[tuple[bytes, Delivery]] = []
        async with Producer(self._world.client("mourner"), settings=SETTINGS) as producer:
            while self._world.producing:
                with suppress(errors.NoLeaderError):
                    for _ in range(rng.randint(1, 6)):
                        value = b"%d" % next(self._numbers)
                        sent.append((value, await producer.send(PHOENIX, b"%d" % rng.randrange(6), value)))
                await self._world.pause(rng, 0.02, rng.choice([0.03, 1.0]))
            for value, delivery in sent:
                with suppress(errors.DeliveryUnknownError):
                    try:
                        await delivery
                        self._outcomes[value] = True
                    except (errors.DeliveryFailedError, errors.RequestRejectedError):
                        self._outcomes[value] = False

    async def _import(self, rng: random.Random) -> None:
        """Run the named producer again and again: each run continues where the topic's present life says."""
        while self._world.producing:
            client = self._world.client(f"scribe-{next(self._numbers)}")
            with suppress(
                TimeoutError,
                errors.NoLeaderError,
                errors.RequestRejectedError,
                errors.DeliveryFailedError,
                errors.DeliveryUnknownError,
            ):
                async with (
                    asyncio.timeout(rng.uniform(5, 60)),
                    Producer(client, name="scribe", settings=SETTINGS) as producer,
                ):
                    await producer.open(PHOENIX)
                    await self._copy(producer, rng)
            await asyncio.sleep(1)

    async def _copy(self, producer: Producer, rng: random.Random) -> None:
        sent: deque[Delivery] = deque()
        for number in itertools.count(int(producer.source_position or 0)):
            value, position = b"%d/%d" % (next(self._numbers), number), b"%d" % (number + 1)
            sent.append(await producer.send(PHOENIX, NAMED, value, source_position=position))
            await self._world.pause(rng, 0, 0.5)
            while len(sent) > rng.choice([0, 8]) or (sent and not self._world.producing):
                await sent.popleft()
            if not self._world.producing:
                return

    # Readers

    async def _consume(self, name: str, number: int, rng: random.Random) -> None:
        while True:
            client = self._world.client(f"{name}-{next(self._numbers)}")
            options: dict[str, Any] = {"topic": PHOENIX, "subscription": name, "type": KINDS[name]}
            options |= {"name": f"{name}-{number}", "start": "earliest"}
            if name == "own" and rng.random() < 0.8:
                options["positions"] = self._positions
            try:
                async with (
                    self._world.faults.rare.ending_at_damage(name),
                    asyncio.timeout(rng.uniform(10, 120)),
                    Consumer(client, **options) as consumer,
                ):
                    async for record in consumer:
                        await self._handle(name, consumer, record, rng)
            except (TimeoutError, errors.NoLeaderError, errors.AcknowledgementsNotStoredError):
                pass
            except errors.RequestRejectedError as error:
                if isinstance(error, errors.OtherHistoryError):
                    raise BrokenPromiseError(f"{name}: no ledger was put back, and {error}") from error
                if isinstance(error, errors.PositionOutOfRangeError) and rng.random() < 0.1:
                    self._positions = None
                self._world.log(name, "ends", str(error))
            await asyncio.sleep(rng.choice([1, 20]) if name == "own" else 1)

    async def _handle(self, name: str, consumer: Consumer, record: ConsumedRecord, rng: random.Random) -> None:
        life, place = self._place(record.value)
        if not record.parked_number:
            self._world.checker.handled(PHOENIX, name, record.segment, record.offset)
        if name == "own":
            at = life, record.segment
            if record.offset > self._read_to[at]:
                raise BrokenPromiseError(f"{name}: life {life} is read to {self._read_to[at]}, then {record}")
            self._read_to[at], self._positions = max(self._read_to[at], record.offset + 1), consumer.positions
            return
        fate, fails = zlib.crc32(record.value) % 100, (name, record.value) not in self._failed
        self._failed.add((name, record.value))
        if name == "queue" and (fate < 6 or (fate < 10 and fails)):
            await consumer.negative_acknowledge(record, reason="unlucky")
            return
        if name == "stream" and fate < 8 and fails:
            with suppress(errors.RequestRejectedError):
                self._parked.add(record.key)
                await consumer.park(record, reason="unlucky")
                return
        await asyncio.sleep(rng.choice([0, 0, 0.2]))
        if name == "stream" and record.value not in self._processed[name]:
            if place < self._last.get((life, record.key), -1):
                raise BrokenPromiseError(f"{name}: {record} is processed after a later one")
            self._last[life, record.key] = place
        self._processed[name].add(record.value)
        await consumer.acknowledge(record)

    def _place(self, value: bytes) -> tuple[int, int]:
        stored = self._world.checker.stored[PHOENIX]
        for place in range(len(self._places), len(stored)):
            if stored[place].value in self._places:
                raise BrokenPromiseError(f"{stored[place]} is stored twice")
            self._places[stored[place].value] = stored[place].topic_id, place
        return self._places[value]

    # The end

    @property
    def _topic(self) -> Topic | None:
        states = self._world.checker.states.values()
        return next((each.topics[PHOENIX] for each in states if PHOENIX in each.topics), None)

    @property
    def is_settled(self) -> bool:
        """Whether the programs have ended, and the last life has no record that is not acknowledged."""
        if not all(each.done() for each in self._pending) or (topic := self._topic) is None:
            return False
        return not any(
            each.redelivery.parked.keys
            or each.redelivery.dead
            or any(each.position(segment) < tail.next_offset for segment, tail in topic.tails.items())
            for each in (topic.subscriptions[name] for name in POLICIES)
        )

    def check(self) -> None:
        """Raise BrokenPromiseError unless the rules hold at the end."""
        if not self.is_settled or (topic := self._topic) is None:
            raise BrokenPromiseError(f"{PHOENIX}: not every record of its last life is acknowledged")
        self._check_ledger()
        letters: Counter[tuple[int, str, bytes]] = Counter()
        for each in self._world.checker.stored[ASHES]:
            origin = origin_of(each.headers)
            assert origin is not None, each
            letters[each.topic_id, origin.subscription, each.value] += 1
        if twice := [letter for letter, times in letters.items() if times > 1]:
            raise BrokenPromiseError(f"{twice[:3]} are in {ASHES} more than once")
        processed = self._processed["queue"] | {value for _, name, value in letters if name == "queue"}
        lost_keys = self._parked if self.lives[ASHES] else set()
        for each in self._world.checker.stored[PHOENIX]:
            left = each.value not in self._processed["stream"] and each.key not in lost_keys
            if each.topic_id == topic.topic_id and (left or each.value not in processed):
                raise BrokenPromiseError(f"{'stream' if left else 'queue'}: {each} was not processed")

    def _check_ledger(self) -> None:
        """Check rules 1 and 2."""
        numbers: Counter[int] = Counter()
        for each in self._world.checker.stored[PHOENIX]:
            self._place(each.value)
            if each.key == NAMED:
                if int(each.value.partition(b"/")[2]) != numbers[each.topic_id]:
                    raise BrokenPromiseError(f"{each} follows #{numbers[each.topic_id] - 1} of its life")
                numbers[each.topic_id] += 1
        for value, is_stored in self._outcomes.items():
            if is_stored != (value in self._places):
                raise BrokenPromiseError(f"{value!r} was reported as {'' if is_stored else 'not '}stored")
