"""Records a second of `Consumer.run` with 64 handlers of 10 ms, against what 64 handlers can do.

Ours: the reading half of a Consumer delivers records of 1 000 keys in 8 segments from a ledger in a local folder, and
`headgate.client.processing` calls the handler, each key in order, which the handler checks, and acknowledges. The other
side is arithmetic: 64 / 10 ms. Keys repeat at random, so some wait for each other. The loop waits with `select`: with
`epoll`, which counts whole milliseconds, a sleep of 10 ms takes 10.4 to 11.2, and such longer handlers reach 0.885 to
0.94. The part `plain_records_a_second` is what 64 tasks reach that only sleep.

The part `allowed_over_overhead` is 5 µs over what a record costs more than in a plain loop that awaits a handler and
acknowledges. Both handlers do nothing.
"""

import asyncio
import random
import selectors
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches, fill
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.acknowledger import Acknowledger
from headgate.client.consuming.record_feed import RecordFeed
from headgate.client.decisions.unstored_acknowledgements import AcknowledgementBatch
from headgate.client.processing.runner import TURN_RECORDS, Runner, RunOptions
from headgate.client.processing.schedule import LookAhead, RetryPolicy
from headgate.log.event_log import get_logger
from headgate.model.entries import SubscriptionType
from headgate.protocol.replies import Acknowledged, Grant
from headgate.storage.object_store import LocalStore

HANDLERS, HANDLER_SECONDS, KEYS, SEGMENTS = 64, 0.01, 1000, 8
ALLOWED_SECONDS = 5e-6
CHUNKS, QUICK_CHUNKS, BATCHES_EACH, RECORDS_EACH, VALUE_BYTES = 20, 2, 10, 100, 200


def measure(effort: Effort) -> Measurement:
    """Return the part of the possible rate that is reached."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        store, chunks = LocalStore(Path(folder)), effort.pick(CHUNKS, QUICK_CHUNKS)
        pending = batches(chunks * BATCHES_EACH, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID, keys=KEYS)
        await fill(store, SEGMENTS, pending, BATCHES_EACH)
        records = len(pending) * RECORDS_EACH
        possible = HANDLERS / HANDLER_SECONDS
        full = {
            "run": partial(_run, store, chunks, records, waits=True),
            "plain": partial(_plain, records),
        }
        waiting = await run_alternating(full, effort.pick(5, 1), effort.progress)
        sides = {
            "run": partial(_run, store, chunks, records, waits=False),
            "loop": partial(_loop, store, chunks, records),
        }
        idle = await run_alternating(sides, effort.pick(25, 3), effort.progress)
    reached = records / waiting.median_seconds("run")
    overhead_seconds = (idle.median_seconds("run") - idle.median_seconds("loop")) / records
    return Measurement(
        reached / possible,
        {
            "records": records,
            "records_a_second": round(reached),
            "possible_records_a_second": round(possible),
            "plain_records_a_second": round(records / waiting.median_seconds("plain")),
            "loop_us": round(idle.median_seconds("loop") / records * 1e6, 2),
            "overhead_us": round(overhead_seconds * 1e6, 2),
            "allowed_over_overhead": round(ALLOWED_SECONDS / max(overhead_seconds, ALLOWED_SECONDS / 100), 2),
        },
    )


async def _begin(records: list[ConsumedRecord]) -> list[ConsumedRecord]:
    return records  # Without a delivery policy, nothing is asked.


class _Consumption:
    """The parts of a consumer between its ledger and a leader that stores each acknowledgement at once."""

    def __init__(self, feed: RecordFeed) -> None:
        self.feed = feed
        self.acknowledger = Acknowledger(
            self._send, SubscriptionType.STREAM, draw=random.random, log=get_logger(__name__)
        )

    async def _send(self, _: AcknowledgementBatch, __: int) -> Acknowledged:
        return Acknowledged()

    async def acknowledge(self, record: ConsumedRecord) -> None:
        """Acknowledge as `headgate.Consumer` does."""
        if self.feed.acknowledge(record):
            key = record.segment, record.generation
            self.acknowledger.acknowledge(key, record.offset, record.offset + 1)
            self.feed.acknowledge_skipped(*key)
            await self.acknowledger.wait_for_capacity()

    async def take(self, count: int, at_once: int) -> AsyncIterator[list[ConsumedRecord]]:
        """Yield the next ``count`` records, some at a time, as `headgate.Consumer` does."""
        while count:
            while not (records := self.feed.take(at_once)):
                await self.feed.queue.changed()
            count -= len(records)
            yield records


@asynccontextmanager
async def _consuming(store: LocalStore, chunks: int) -> AsyncIterator[_Consumption]:
    async with asyncio.TaskGroup() as tasks:
        feed = RecordFeed("bench", SubscriptionType.STREAM, {}, lambda work, name: tasks.create_task(work, name=name))
        consumption = _Consumption(feed)
        sending = tasks.create_task(consumption.acknowledger.run())
        feed.open(store, 0, 1)
        feed.head.advance(chunks + 1)
        for segment in range(SEGMENTS):
            grant = Grant(segment=segment, generation=1, first_hash=0, last_hash=65535, start_offset=0, start_chunk=1)
            consumption.acknowledger.unstored.begin((segment, 1), feed.begin(grant).acknowledged)
        yield consumption
        await consumption.acknowledger.flush(10)
        sending.cancel()
        await feed.close()


async def _run(store: LocalStore, chunks: int, records: int, *, waits: bool) -> None:
    newest: dict[tuple[bytes, int], int] = {}

    async def handle(record: ConsumedRecord) -> None:
        if waits:
            assert newest.get((record.key, record.segment), -1) < record.offset, "a key is out of order"
            await asyncio.sleep(HANDLER_SECONDS)
            newest[record.key, record.segment] = record.offset

    options, log = RunOptions(HANDLERS, RetryPolicy(), None, LookAhead(), 20), get_logger(__name__)
    async with _consuming(store, chunks) as parts:
        deliveries: Any = SimpleNamespace(feed=parts.feed, begin=_begin)
        stream = SubscriptionType.STREAM
        runner = Runner(handle, options, deliveries, stream, parts.acknowledge, draw=random.random, log=log)
        assert (await runner.run(parts.take(records, TURN_RECORDS))).handled == records


async def _plain(records: int) -> None:
    numbers = iter(range(records))

    async def sleep() -> None:
        for _ in numbers:
            await asyncio.sleep(HANDLER_SECONDS)

    await asyncio.gather(*[sleep() for _ in range(HANDLERS)])


async def _loop(store: LocalStore, chunks: int, records: int) -> None:
    async def handle(_record: ConsumedRecord) -> None:
        pass

    async with _consuming(store, chunks) as parts:
        async for (record,) in parts.take(records, 1):
            await handle(record)
            await parts.acknowledge(record)


PARTS = {"allowed_over_overhead": 1.0}
BENCHMARK = Benchmark(unit="of the rate of 64 handlers", goal=0.9, better="higher", measure=measure, part_goals=PARTS)
