"""Chunks are read in order, and the longer they follow each other, the more of them ahead."""

import asyncio
from contextlib import aclosing

import pytest

from controller.snapshots.restore import MAX_READS, read_in_order, reads_under_way
from headgate.errors import LedgerError
from headgate.ledger.objects import chunk_folder, chunk_name
from tests.support.fakes.memory_ledger import LedgerInMemory

DELAY_SECONDS = 0.04


async def numbers(ledger: LedgerInMemory, first: int = 1, found: list[int] | None = None) -> list[int]:
    """Return the numbers of the chunks that were read, also in ``found``."""
    found = [] if found is None else found
    async with aclosing(read_in_order(ledger.ledger, first)) as chunks:
        async for chunk in chunks:
            found.append(chunk.header.number)
    return found


@pytest.mark.parametrize(("found", "reads"), [(0, 1), (7, 1), (8, 2), (15, 2), (16, 3), (120, 16), (100_000, 16)])
def test_more_reads_are_under_way_the_more_chunks_were_found(found: int, reads: int) -> None:
    """Rule 1."""
    assert reads_under_way(found) == reads


async def test_many_chunks_of_a_slow_store_are_read_together_and_returned_in_order() -> None:
    """Rule 2: in order, although a later read may be complete first."""
    ledger = LedgerInMemory(500)
    ledger.store.latency_seconds = (DELAY_SECONDS / 2, DELAY_SECONDS)
    before = asyncio.get_running_loop().time()

    assert await numbers(ledger, 101) == list(range(101, 501))
    assert asyncio.get_running_loop().time() - before < 400 * DELAY_SECONDS / 6
    assert ledger.store.calls["read"] <= 400 + MAX_READS


async def test_chunks_after_a_missing_one_are_not_returned() -> None:
    ledger = LedgerInMemory(100)
    ledger.lose(61)

    assert await numbers(ledger) == list(range(1, 61))


async def test_a_damaged_chunk_is_reported_in_its_turn() -> None:
    ledger = LedgerInMemory(100)
    ledger.store.objects[f"{chunk_folder(0)}/{chunk_name(61)}"] = b"damaged"
    found: list[int] = []
    with pytest.raises(LedgerError):
        await numbers(ledger, found=found)

    assert found == list(range(1, 61))


async def test_who_stops_early_leaves_no_reads_behind() -> None:
    ledger = LedgerInMemory(200)
    ledger.store.latency_seconds = (DELAY_SECONDS, DELAY_SECONDS)
    before = asyncio.all_tasks()
    async with aclosing(read_in_order(ledger.ledger, 1)) as chunks:
        async for chunk in chunks:
            if chunk.header.number == 150:
                break
        assert len(asyncio.all_tasks() - before) > 1

    assert asyncio.all_tasks() == before
