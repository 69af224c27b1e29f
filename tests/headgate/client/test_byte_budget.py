"""How shards share the bytes of a producer."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.producing.record_batch import ByteBudget

pytestmark = pytest.mark.looptime


async def test_a_shard_without_a_leader_does_not_starve_the_others():
    budget = ByteBudget(100, 10)
    while budget.try_reserve(0, 10):
        pass
    assert 100 == budget.used_by(0)
    assert budget.try_reserve(1, 10)
    assert not budget.try_reserve(1, 1)
    assert budget.try_reserve(2, 10)


async def test_bytes_granted_to_a_cancelled_waiter_are_released():
    budget = ByteBudget(10, 10)
    assert budget.try_reserve(0, 10)
    waiting = asyncio.create_task(budget.reserve(0, 10))
    await asyncio.sleep(0)
    budget.release(0, 10)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert budget.try_reserve(0, 10)


async def test_bytes_released_during_a_cancellation_go_to_the_next_waiter():
    budget = ByteBudget(10, 10)
    assert budget.try_reserve(0, 10)
    leaving, staying = asyncio.create_task(budget.reserve(0, 10)), asyncio.create_task(budget.reserve(0, 10))
    await asyncio.sleep(0)
    leaving.cancel()
    budget.release(0, 10)
    await staying
    assert 10 == budget.used_bytes


async def test_a_record_larger_than_the_budget_is_reserved_alone():
    budget = ByteBudget(10, 4)
    assert budget.try_reserve(0, 100)
    assert not budget.try_reserve(0, 1)
    budget.release(0, 100)
    assert budget.try_reserve(0, 10)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=60), st.integers(5, 60))
def test_the_guaranteed_minimum_always_holds_and_every_byte_is_returned(takes, guaranteed):
    budget = ByteBudget(max(60, guaranteed), guaranteed)
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
