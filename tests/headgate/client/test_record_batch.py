"""One batch and its waiters; test_producer.py covers the outcomes."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.decisions.session_types import Outcome
from headgate.client.record_batch import Delivery, RecordBatch, RecordMetadata
from headgate.model.entries import Placement
from headgate.protocol import messages as m

COMMITTED = m.Committed(placements=[Placement(0, 0, 65535, 7, 1)], topic_id=3)


def batch_of_one() -> tuple[RecordBatch, Delivery]:
    batch = RecordBatch("orders", 60.0, lambda _: None)
    return batch, batch.add(m.Record(b"k", b"v", 5), 26, None)


async def stored(delivery: Delivery) -> RecordMetadata:
    return await delivery


async def test_an_outcome_reaches_all_waiters_although_one_is_cancelled():
    batch, delivery = batch_of_one()
    impatient, patient = (asyncio.ensure_future(stored(delivery)) for _ in range(2))
    await asyncio.sleep(0)

    impatient.cancel()
    batch.resolve(Outcome.COMMITTED, COMMITTED, "")

    assert await patient == RecordMetadata(0, 7, duplicate=False, topic_id=3)
    assert await delivery == RecordMetadata(0, 7, duplicate=False, topic_id=3)
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_a_cancelled_waiter_is_removed():
    """A program may await the outcome repeatedly, with a short timeout."""
    batch, delivery = batch_of_one()
    for _ in range(3):
        impatient = asyncio.ensure_future(stored(delivery))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])

    assert not batch._waiters
