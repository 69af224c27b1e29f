"""One batch and its waiters; test_producer.py covers the outcomes."""

import asyncio

import pytest

from headgate.client.decisions.session_batches import Outcome
from headgate.client.producing.record_batch import DEADLINE_RESOLUTION_SECONDS, Delivery, RecordBatch, RecordMetadata
from headgate.errors import DeliveryFailedError, DeliveryUnknownError
from headgate.model.entries import Placement
from headgate.protocol.replies import Committed
from headgate.protocol.requests import Record

COMMITTED = Committed(placements=[Placement(0, 0, 65535, 7, 1)], topic_id=3)


def batch_of_one() -> tuple[RecordBatch, Delivery]:
    batch = RecordBatch("orders", lambda *_: None)
    return batch, batch.add(Record(b"k", b"v", 5), 26, None, 60.0)


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


def batch_of_three() -> tuple[RecordBatch, list[Delivery], list[tuple[Outcome, int, int]]]:
    """A batch of three records that expire at 10, 10 and 20 s, and what it reports."""
    reported: list[tuple[Outcome, int, int]] = []
    batch = RecordBatch("orders", lambda _, *outcome: reported.append(outcome))
    deadlines = [10.0, 10.0 + DEADLINE_RESOLUTION_SECONDS / 2, 20.0]
    return batch, [batch.add(Record(b"k", b"v", 5), 26, None, deadline) for deadline in deadlines], reported


async def test_expired_records_leave_a_batch_that_was_never_sent_and_the_others_keep_their_offsets():
    batch, deliveries, reported = batch_of_three()
    waiters = [asyncio.ensure_future(stored(delivery)) for delivery in deliveries]
    await asyncio.sleep(0)
    batch.expire(batch.deadlines[0], Outcome.FAILED, "never sent")
    await asyncio.sleep(0)
    assert [True, True, False] == [waiter.done() for waiter in waiters] == [each.done() for each in deliveries]

    assert 1 == len(batch.request(producer_id=1, producer_epoch=0, sequence=0).records)
    batch.resolve(Outcome.COMMITTED, COMMITTED, "")
    assert await waiters[2] == RecordMetadata(0, 7, duplicate=False, topic_id=3)
    for expired in waiters[:2]:
        with pytest.raises(DeliveryFailedError, match=r"not stored: never sent$"):
            await expired
    assert [(Outcome.FAILED, 2, 52), (Outcome.COMMITTED, 1, 26)] == reported


async def test_expired_records_stay_in_a_batch_that_was_sent():
    """A batch is never rebuilt: a retry is the same batch."""
    batch, deliveries, reported = batch_of_three()
    batch.expire(batch.deadlines[0], Outcome.UNKNOWN, "sent")
    assert 3 == len(batch.request(producer_id=1, producer_epoch=0, sequence=0).records)
    batch.resolve(Outcome.COMMITTED, Committed(placements=[Placement(0, 0, 65535, 7, 3)], topic_id=3), "")

    with pytest.raises(DeliveryUnknownError, match=r"it may or may not be stored: sent$"):
        await deliveries[1]
    assert await deliveries[2] == RecordMetadata(0, 9, duplicate=False, topic_id=3)
    assert [(Outcome.UNKNOWN, 2, 0), (Outcome.COMMITTED, 1, 78)] == reported


async def test_records_that_expired_in_flight_leave_a_batch_with_those_that_expire_after_an_opening():
    """The opening has shown that none of them is stored."""
    batch, deliveries, reported = batch_of_three()
    batch.add(Record(b"k", b"last", 5), 29, None, 30.0)
    batch.expire(batch.deadlines[0], Outcome.UNKNOWN, "sent")
    batch.expire(batch.deadlines[1], Outcome.FAILED, "decided")
    assert [b"last"] == [each.value for each in batch.request(producer_id=1, producer_epoch=1, sequence=0).records]
    batch.resolve(Outcome.COMMITTED, COMMITTED, "")

    with pytest.raises(DeliveryUnknownError):
        await deliveries[0]
    with pytest.raises(DeliveryFailedError, match=r"not stored: decided$"):
        await deliveries[2]
    assert [(Outcome.UNKNOWN, 2, 0), (Outcome.FAILED, 1, 78), (Outcome.COMMITTED, 1, 29)] == reported
