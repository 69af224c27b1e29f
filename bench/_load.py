"""Load for the figures of ingestion: whole batches through a real Producer, each outcome looked at."""

from __future__ import annotations

from bench._stage import TOPIC
from headgate import Producer, ProducerSettings
from headgate.record_batch import RECORD_OVERHEAD_BYTES, Delivery

BATCH_BYTES = 50 * 1024
RECORDS_A_BATCH = 50


def whole_batches(max_in_flight: int, batch_bytes: int = BATCH_BYTES) -> ProducerSettings:
    """Return settings of a producer whose batches leave when they are full and not before."""
    return ProducerSettings(
        linger_seconds=5.0,
        batch_bytes=batch_bytes,
        max_in_flight=max_in_flight,
        request_timeout_seconds=10.0,
    )


def batch_of_records(seed: int = 1) -> list[tuple[bytes, bytes]]:
    """Return (key, value) of RECORDS_A_BATCH records of about 1 KB that fill a batch to the last byte."""
    each = BATCH_BYTES // RECORDS_A_BATCH - RECORD_OVERHEAD_BYTES
    found = []
    for number in range(RECORDS_A_BATCH):
        key = f"sensor-{seed:04d}-{number:03d}".encode()
        found.append((key, bytes([number + 32]) * (each - len(key))))
    return found


async def pump(producer: Producer, records: list[tuple[bytes, bytes]], times: int) -> None:
    """Send ``records`` ``times`` over and return once all of them are committed. Raises what a delivery raised."""
    last: list[Delivery] = []
    for _ in range(times):
        delivery = None
        for key, value in records:
            delivery = await producer.send(TOPIC, key, value)
        assert delivery is not None, "nothing to send"
        last.append(delivery)
    await producer.flush()
    for delivery in last:
        await delivery
