"""Honest users at a steady pace: producers, a device and a consumer. Every record has a number.

The latency of a record counts from the time at which it was due, so a stall counts for all records that it delays.
"""

import asyncio
import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

from bench.harness.cluster import SHARD, TOPIC, SecuredBenchCluster
from bench.harness.raw_client import RawClient
from headgate import Admin, Consumer, Producer

PRODUCERS = 2
PRODUCER_PERIOD_SECONDS = 0.04
DEVICE_PERIOD_SECONDS = 0.1
VALUE_BYTES = 100
SETTLE_SECONDS = 120.0
"""Longest wait, at the end, for the consumer to receive what was stored."""

Numbers = Mapping[bytes, Sequence[int]]
"""Key → numbers of its records, in order."""

FAULTS = ("lost", "repeated", "reordered", "forged")
"""What must never happen to records, in the ledger or at the consumer. Forged: under a key, or with a number, that no
honest user has sent."""


def faults(sent: Numbers, seen: Numbers) -> Counter[str]:
    """Compare what honest users sent with what was seen in one place; return how many records have which fault."""
    found = Counter(dict.fromkeys(FAULTS, 0))
    found["forged"] += sum(len(numbers) for key, numbers in seen.items() if key not in sent)
    for key, listed in sent.items():
        numbers = set(listed)
        there = [number for number in seen.get(key, ()) if number in numbers]
        first_seen = list(dict.fromkeys(there))
        found["forged"] += len(seen.get(key, ())) - len(there)
        found["lost"] += len(numbers - set(there))
        found["repeated"] += len(there) - len(first_seen)
        found["reordered"] += sum(later < earlier for earlier, later in itertools.pairwise(first_seen))
    return found


def by_key(records: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[int]]:
    """Return the numbers of ``records`` (key, value). A forged value counts as number -1."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for key, value in records:
        digits = value.partition(b" ")[0]
        found[key].append(int(digits) if digits.isdigit() else -1)
    return found


class HonestLoad:
    """The honest users of one cluster. `run` lets them work; they rest otherwise."""

    def __init__(self, cluster: SecuredBenchCluster) -> None:
        self._cluster = cluster
        self._sent: dict[bytes, list[int]] = defaultdict(list)
        self._received: list[tuple[bytes, bytes]] = []
        self._arrived = asyncio.Event()
        self._producers: list[Producer] = []

    async def start(self, stack: AsyncExitStack) -> None:
        """Connect all users until ``stack`` is closed."""
        config = self._cluster.client_config()
        for _ in range(PRODUCERS):
            self._producers.append(await stack.enter_async_context(Producer(config)))
        self._consumer = await stack.enter_async_context(
            Consumer(config, topic=TOPIC, subscription="honest", start="earliest")
        )
        self._device: RawClient = await stack.enter_async_context(self._cluster.raw_client("device-1"))
        consuming = asyncio.create_task(self._consume())
        stack.callback(consuming.cancel)

    async def run(self, seconds: float) -> list[float]:
        """Work for ``seconds``; return the latencies of the producers' records, in seconds."""
        until = asyncio.get_running_loop().time() + seconds
        latencies: list[float] = []
        async with asyncio.TaskGroup() as tasks:
            for number, producer in enumerate(self._producers):
                tasks.create_task(self._produce(producer, f"producer-{number}".encode(), until, latencies))
            tasks.create_task(self._publish(until))
        return latencies

    async def settled(self) -> Counter[str]:
        """Wait until the consumer has received everything; return all faults so far."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while len(self._received) < self.records:
                    self._arrived.clear()
                    await self._arrived.wait()
        found = faults(self._sent, by_key(await self._stored()))
        found.update(faults(self._sent, by_key(self._received)))
        return found

    @property
    def records(self) -> int:
        """Number of records that were sent."""
        return sum(map(len, self._sent.values()))

    async def _produce(self, producer: Producer, key: bytes, until: float, latencies: list[float]) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while due < until:
            await asyncio.sleep(due - loop.time())
            await (await producer.send(TOPIC, key, self._next_value(key)))
            latencies.append(loop.time() - due)
            due += PRODUCER_PERIOD_SECONDS

    async def _publish(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            topic = f"headgate/{self._cluster.name}/publish/{TOPIC}/device"
            reason = await self._device.publish(topic, self._next_value(b"device"))
            assert reason == "Success", reason
            await asyncio.sleep(DEVICE_PERIOD_SECONDS)

    def _next_value(self, key: bytes) -> bytes:
        number = len(self._sent[key])
        self._sent[key].append(number)
        return f"{number} ".encode().ljust(VALUE_BYTES, b"x")

    async def _consume(self) -> None:
        async for record in self._consumer:
            self._received.append((record.key, record.value))
            self._arrived.set()
            await self._consumer.acknowledge(record)

    async def _stored(self) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of all records of the honest topic, in the order of the ledger."""
        ledger = self._cluster.ledger(SHARD)
        async with Admin(self._cluster.client_config()) as admin:
            topic_id = (await admin.describe_topic(TOPIC)).topic_id
        found: list[tuple[bytes, bytes]] = []
        for number in await ledger.numbers():
            _, records = await ledger.read_records(number)
            columns = zip(records.topic_id, records.key, records.value, strict=True)
            found += [(key, value) for of_topic, key, value in columns if of_topic == topic_id]
        return found
