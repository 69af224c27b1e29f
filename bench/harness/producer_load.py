"""Load for the ingestion benchmarks: whole batches through a real Producer, with every outcome checked."""

from __future__ import annotations

import asyncio

from bench.harness.cluster import TOPIC
from headgate import Producer, ProducerSettings
from headgate.client.batch_content import RECORD_OVERHEAD_BYTES
from headgate.client.record_batch import Delivery

BATCH_BYTES = 50 * 1024
RECORDS_A_BATCH = 50


def whole_batches(max_in_flight: int, batch_bytes: int = BATCH_BYTES) -> ProducerSettings:
    """Return settings of a producer that sends batches only when they are full."""
    return ProducerSettings(
        linger_seconds=5.0,
        batch_bytes=batch_bytes,
        max_in_flight=max_in_flight,
        request_timeout_seconds=10.0,
    )


def batch_of_records(seed: int = 1) -> list[tuple[bytes, bytes]]:
    """Return (key, value) of RECORDS_A_BATCH records of about 1 KB that fill a batch exactly."""
    each = BATCH_BYTES // RECORDS_A_BATCH - RECORD_OVERHEAD_BYTES
    found = []
    for number in range(RECORDS_A_BATCH):
        key = f"sensor-{seed:04d}-{number:03d}".encode()
        found.append((key, bytes([number + 32]) * (each - len(key))))
    return found


async def pump(producer: Producer, records: list[tuple[bytes, bytes]], times: int) -> None:
    """Send ``records`` ``times`` over and wait until all are committed. Raises what a delivery raises."""
    await steady_seconds(producer, records, times)


async def steady_seconds(producer: Producer, records: list[tuple[bytes, bytes]], times: int) -> float:
    """Like `pump`, and return the seconds from the first repetition's outcome to the last one's.

    The first one's wait is latency and does not belong to the throughput.
    """
    loop = asyncio.get_running_loop()
    last: list[Delivery] = []
    first_at: asyncio.Task[float] | None = None
    for _ in range(times):
        delivery = None
        for key, value in records:
            delivery = await producer.send(TOPIC, key, value)
        assert delivery is not None, "nothing to send"
        last.append(delivery)
        if first_at is None:
            first_at = asyncio.create_task(_time_of(delivery))
    assert first_at is not None, "nothing to send"
    await producer.flush()
    seconds = loop.time() - await first_at
    for delivery in last:
        await delivery
    return seconds


async def _time_of(delivery: Delivery) -> float:
    await delivery
    return asyncio.get_running_loop().time()
