"""One batch and those who wait for it; what becomes of batches is in test_producer.py."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.decisions.session_types import Outcome
from headgate.client.record_batch import Delivery, RecordBatch, RecordMetadata
from headgate.model.entries import Placement
from headgate.protocol import messages as m

COMMITTED = m.Committed(placements=[Placement(0, 0, 65535, 7, 1)])


def batch_of_one() -> tuple[RecordBatch, Delivery]:
    batch = RecordBatch("orders", 60.0, lambda _: None)
    return batch, batch.add(m.Record(b"k", b"v", 5), 26, None)


async def stored(delivery: Delivery) -> RecordMetadata:
    return await delivery


async def test_an_outcome_that_comes_while_somebody_gives_up_reaches_all_others():
    batch, delivery = batch_of_one()
    impatient, patient = (asyncio.ensure_future(stored(delivery)) for _ in range(2))
    await asyncio.sleep(0)

    impatient.cancel()
    batch.resolve(Outcome.COMMITTED, COMMITTED, "")

    assert await patient == RecordMetadata(0, 7, duplicate=False)
    assert await delivery == RecordMetadata(0, 7, duplicate=False)
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_who_gave_up_leaves_nothing_behind():
    """A program may ask again and again, with a short time limit each time."""
    batch, delivery = batch_of_one()
    for _ in range(3):
        impatient = asyncio.ensure_future(stored(delivery))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])

    assert not batch._waiters
