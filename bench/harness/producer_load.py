"""Load for the ingestion benchmarks: records through a real Producer, with every outcome checked."""

from __future__ import annotations

from bench.harness.cluster import TOPIC
from headgate import Producer
from headgate.client.producing.record_batch import RECORD_OVERHEAD_BYTES

BATCH_BYTES = 50 * 1024
RECORDS_A_BATCH = 50


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
    last = []
    for _ in range(times):
        for key, value in records:
            delivery = await producer.send(TOPIC, key, value)
        last.append(delivery)
    await producer.flush()
    for delivery in last:
        await delivery
