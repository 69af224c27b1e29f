"""Throughput of storing records, against only carrying them through the broker.

Ours: a Producer with default settings sends records to one shard of a real daemon; all are durable
at the end. The other side: the same values, one message each, through the same broker with the same
library to a subscriber that discards them and reports their number at the end. The value is the
lesser ratio of records per second, for values of 100 bytes and of 1 KB. The other side carries
record by record, as any MQTT program does; `bundled` shows a carrier that batches like the
producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, Rounds, run_alternating_async
from bench.harness.broker_peer import BACK_TOPIC, SINK_TOPIC
from bench.harness.cluster import TOPIC, BenchCluster
from bench.harness.producer_load import pump
from bench.harness.workload import records
from headgate import Producer, ProducerSettings
from headgate.client.connection import Client

SIZES_BYTES = (100, 1024)
BUNDLE_BYTES = ProducerSettings().batch_bytes
YIELD_BYTES = 256 * 1024
"""Bytes after which the sender yields to the event loop, as the producer does."""
ANSWER_SECONDS = 60.0


class _Carrier:
    """Sends to the sink of bench.harness.broker_peer and asks how much arrived."""

    def __init__(self, client: Client) -> None:
        self._transport = client.transport
        self._answer: asyncio.Future[tuple[int, int]] | None = None

    async def start(self) -> None:
        """Listen for the sink's answers."""
        await self._transport.subscribe(BACK_TOPIC, self._on_answer)

    def _on_answer(self, _: str, payload: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            messages, size_bytes = payload.split()
            self._answer.set_result((int(messages), int(size_bytes)))

    async def carry(self, payloads: list[bytes]) -> None:
        """Send ``payloads`` and wait until the sink has received them. A loss is an error."""
        self._answer = asyncio.get_running_loop().create_future()
        since_bytes = 0
        for payload in payloads:
            await self._send(payload)
            since_bytes += len(payload)
            if since_bytes >= YIELD_BYTES:
                since_bytes = 0
                await asyncio.sleep(0)
        await self._send(b"")
        async with asyncio.timeout(ANSWER_SECONDS):
            arrived, _ = await self._answer
        assert arrived == len(payloads), f"{len(payloads) - arrived} of {len(payloads)} messages were lost"

    async def _send(self, payload: bytes) -> None:
        while not self._transport.publish(SINK_TOPIC, payload):  # noqa: ASYNC110 - the buffer drains in the next turn of the loop
            await asyncio.sleep(0)


def measure(effort: Effort) -> Measurement:
    """Return the lesser ratio of records a second."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        await cluster.start_peer(stack)
        carrier = _Carrier(await cluster.watcher(stack))
        await carrier.start()
        producer = await stack.enter_async_context(Producer(cluster.client_config()))
        await producer.open(TOPIC)
        parts: dict[str, Part] = {}
        ratios = []
        for size_bytes in SIZES_BYTES:
            count = effort.pick(40_000, 8_000) if size_bytes == SIZES_BYTES[0] else effort.pick(16_000, 4_000)
            effort.progress(f"{count} records of {size_bytes} bytes")
            sides = _sides(producer, carrier, size_bytes, count)
            rounds = await run_alternating_async(sides, effort.pick(9, 3), effort.progress)
            ratios.append(median(rounds.ratios("carried", "stored")))
            parts |= _parts(rounds, size_bytes, count)
    return Measurement(min(ratios), parts)


def _sides(
    producer: Producer, carrier: _Carrier, size_bytes: int, count: int
) -> dict[str, Callable[[], Awaitable[None]]]:
    rows = records(count, size_bytes)
    stored, carried = [(row.key, row.value) for row in rows], [row.value for row in rows]
    bundles = bundled(carried)
    return {
        "stored": lambda: pump(producer, stored, 1),
        "carried": lambda: carrier.carry(carried),
        "bundled": lambda: carrier.carry(bundles),
    }


def bundled(payloads: list[bytes]) -> list[bytes]:
    """Return ``payloads`` (all of one size) joined to messages as large as the producer's batches."""
    each = max(1, BUNDLE_BYTES // len(payloads[0]))
    return [b"".join(payloads[first : first + each]) for first in range(0, len(payloads), each)]


def _parts(rounds: Rounds, size_bytes: int, count: int) -> dict[str, Part]:
    # Inverse ratios of times are ratios of rates.
    ratios = rounds.ratios("carried", "stored")
    rates: dict[str, Part] = {
        f"{side}_records_a_second_{size_bytes}": round(count / rounds.median_seconds(side)) for side in rounds.seconds
    }
    return {
        **rates,
        f"ratio_{size_bytes}": round(median(ratios), 4),
        f"lowest_{size_bytes}": round(min(ratios), 4),
        f"highest_{size_bytes}": round(max(ratios), 4),
        f"ratio_to_bundled_{size_bytes}": round(median(rounds.ratios("bundled", "stored")), 4),
        f"records_{size_bytes}": count,
    }


BENCHMARK = Benchmark(unit="of carrying alone", goal=0.5, better="higher", measure=measure)
