"""What a daemon reads of a shard that it follows without its state."""

from unittest.mock import AsyncMock

import pytest

from controller.chunk_writer.builder import ChunkBuilder
from controller.leader.term_tail import TermTail
from headgate.errors import LedgerError
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_path
from headgate.model import entries as e
from tests.support.fakes.object_store import FakeStore


async def append(ledger: Ledger, number: int, epoch: int, *entries: e.AnyEntry) -> None:
    builder = ChunkBuilder()
    for entry in entries:
        builder.add(entry)
    await ledger.append(number, builder.encode(shard=0, number=number, leader_epoch=epoch, at_ms=number))


@pytest.fixture
async def ledger() -> Ledger:
    """Two terms, of three chunks and of two."""
    made = Ledger(FakeStore(), 0)
    opened = e.ProducerOpened(producer_id=1, producer_epoch=0, token="t", user="anonymous")
    await append(made, 1, 1, e.TermStarted(leader_epoch=1, instance="a"))
    await append(made, 2, 1, opened)
    await append(made, 3, 1, opened)
    await append(made, 4, 2, e.TermStarted(leader_epoch=2, instance="b"))
    await append(made, 5, 2, opened)
    return made


async def test_it_knows_the_end_and_the_leader_of_the_newest_term(ledger: Ledger) -> None:
    tail = TermTail(0, 0, "")
    assert 5 == await tail.read(ledger)
    assert TermTail(5, 2, "b") == tail
    assert 0 == await tail.read(ledger)


async def test_it_starts_at_the_end_with_the_newest_term(ledger: Ledger) -> None:
    for number in range(6, 40):
        await append(ledger, number, 2)
    reads: list[str] = []
    store_read = ledger.store.read

    async def noted(path: str) -> bytes:
        reads.append(path)
        return await store_read(path)

    ledger.store.read = noted  # type: ignore[method-assign]
    assert TermTail(39, 2, "b") == await TermTail.at_end(ledger)
    assert len(reads) < 10


async def test_it_starts_where_the_chunks_of_earlier_terms_were_trimmed(ledger: Ledger) -> None:
    for number in (2, 3):
        await ledger.delete(number)
    assert TermTail(5, 2, "b") == await TermTail.at_end(ledger)


async def test_a_new_ledger_has_no_term() -> None:
    assert TermTail(0, 0, "") == await TermTail.at_end(Ledger(FakeStore(), 0))


async def test_it_starts_again_if_chunks_are_trimmed_meanwhile(ledger: Ledger) -> None:
    ledger.numbers = AsyncMock(return_value=await ledger.numbers())  # type: ignore[method-assign]
    await ledger.delete(3)

    assert await TermTail.at_end(ledger) is None


async def test_a_damaged_chunk_is_noticed(ledger: Ledger) -> None:
    path = chunk_path(0, 3)
    damaged = bytearray(await ledger.store.read(path))
    damaged[len(damaged) // 2] ^= 1
    await ledger.store.delete(path)
    await ledger.store.create(path, bytes(damaged))
    tail = TermTail(0, 0, "")
    with pytest.raises(LedgerError, match=path):
        await tail.read(ledger)
    assert 2 == tail.chunk
