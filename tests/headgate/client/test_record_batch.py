"""One batch and its waiters; test_producer.py covers the outcomes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.decisions.session_batches import Outcome
from headgate.client.producing import record_batch
from headgate.errors import DeliveryFailedError, DeliveryUnknownError
from headgate.model.entries import Placement
from headgate.protocol.replies import Committed
from headgate.protocol.requests import Record

COMMITTED = Committed(placements=[Placement(0, 0, 65535, 7, 1)], topic_id=3)


async def stored(delivery: record_batch.Delivery) -> record_batch.RecordMetadata:
    return await delivery


async def test_an_outcome_reaches_all_waiters_although_one_is_cancelled():
    batch = record_batch.RecordBatch("orders", lambda *_: None)
    delivery = batch.add(Record(b"k", b"v", 5), 26, None, 60.0)
    impatient, patient = (asyncio.ensure_future(stored(delivery)) for _ in range(2))
    await asyncio.sleep(0)

    impatient.cancel()
    batch.resolve(Outcome.COMMITTED, COMMITTED, "")

    assert await patient == record_batch.RecordMetadata(0, 7, duplicate=False, topic_id=3)
    assert await delivery == record_batch.RecordMetadata(0, 7, duplicate=False, topic_id=3)
    with pytest.raises(asyncio.CancelledError):
        await impatient


def batch_of_three() -> tuple[record_batch.RecordBatch, list[record_batch.Delivery], list[tuple[Outcome, int, int]]]:
    """A batch of three records that expire at 10, 10 and 20 s, and what it reports."""
    reported: list[tuple[Outcome, int, int]] = []
    batch = record_batch.RecordBatch("orders", lambda _, *outcome: reported.append(outcome))
    deadlines = [10.0, 10.0 + record_batch.DEADLINE_RESOLUTION_SECONDS / 2, 20.0]
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
    assert await waiters[2] == record_batch.RecordMetadata(0, 7, duplicate=False, topic_id=3)
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
    assert await deliveries[2] == record_batch.RecordMetadata(0, 9, duplicate=False, topic_id=3)
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


# How shards share the bytes of a producer.


async def test_a_shard_without_a_leader_does_not_starve_the_others():
    budget = record_batch.ByteBudget(100, 10)
    while budget.try_reserve(0, 10):
        pass
    assert 100 == budget.used_by(0)
    assert budget.try_reserve(1, 10)
    assert not budget.try_reserve(1, 1)
    assert budget.try_reserve(2, 10)


@pytest.mark.parametrize("order", [1, -1], ids=["cancelled first", "granted first"])
async def test_bytes_of_a_cancelled_waiter_go_to_the_next_one(order: int):
    budget = record_batch.ByteBudget(10, 10)
    assert budget.try_reserve(0, 10)
    leaving, staying = asyncio.create_task(budget.reserve(0, 10)), asyncio.create_task(budget.reserve(0, 10))
    await asyncio.sleep(0)
    for step in (leaving.cancel, lambda: budget.release(0, 10))[::order]:
        step()
    await staying
    assert 10 == budget.used_bytes


async def test_a_record_larger_than_the_budget_is_reserved_alone():
    budget = record_batch.ByteBudget(10, 4)
    assert budget.try_reserve(0, 100)
    assert not budget.try_reserve(0, 1)
    budget.release(0, 100)
    assert budget.try_reserve(0, 10)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=60), st.integers(5, 60))
def test_the_guaranteed_minimum_always_holds_and_every_byte_is_returned(takes, guaranteed):
    budget = record_batch.ByteBudget(max(60, guaranteed), guaranteed)
    taken = []
    for shard, size in takes:
        used = budget.used_by(shard)
        got = budget.try_reserve(shard, size)
        assert got or used + size > guaranteed, "a shard did not get its minimum"
        if got:
            taken.append((shard, size))
    for shard, size in taken:
        budget.release(shard, size)
    assert 0 == budget.used_bytes
    assert budget.try_reserve(0, max(60, guaranteed)), "the pool is complete again"
