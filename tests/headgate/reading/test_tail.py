"""What reads on for all readers at the tail, which sleep until there is something to do."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger.chunk import ChunkHeader
from headgate.reading.stored_rows import Rows
from headgate.reading.tail import ChunkRows, Head, Tail

pytestmark = pytest.mark.looptime
NEVER = float("inf")
Reader = asyncio.Future[int]


class PolledLedger:
    """Chunks, of which the next one may be missing, and readers that wait for it."""

    def __init__(self) -> None:
        self.head = Head()
        self.polled: list[tuple[float, int]] = []
        """Loop time and chunk of each poll."""
        self.error: Exception | None = ObjectMissingError("no chunk")
        self.segments: dict[int, list[int]] = {}
        """Chunk → the segments that have records in it; segment 0 by default."""
        self.durable = 0
        self.tail = Tail(self._read, self._make_durable)

    def reader(self, wake_at: float = NEVER, number: int = 1, segment: int | None = 0) -> Reader:
        return self.tail.join(self.head, segment, number, wake_at)

    async def _read(self, number: int, _: int) -> ChunkRows:
        self.polled.append((asyncio.get_running_loop().time(), number))
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        header = ChunkHeader(format=1, shard=0, number=number, leader_epoch=1, at_ms=1, entries=0, records=0)
        return ChunkRows(dict.fromkeys(self.segments.get(number, [0]), Rows([], [], [], [], [])), header)

    async def _make_durable(self) -> None:
        self.durable += 1

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.polled]


async def ended(*readers: Reader) -> Sequence[int]:
    return await asyncio.wait_for(asyncio.gather(*readers), 0.1)


async def test_all_readers_share_polls_that_grow_rare_and_sleep_while_they_find_nothing() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(5)]
    await asyncio.sleep(95)

    assert ledger.times == pytest.approx([1, 3.01, 7.02, 15.03, 31.04, 61.05, 91.06])
    assert not any(reader.done() for reader in readers)
    ledger.error = None
    ledger.head.advance(1)
    assert await ended(*readers) == [1] * 5

    ledger.error = ObjectMissingError("no chunk")
    reader = ledger.reader(number=2)
    await asyncio.sleep(1.1)
    assert ledger.times[-1] == pytest.approx(96.0, abs=0.1), "a second after the head has changed"
    reader.cancel()


async def test_while_a_leader_states_the_head_polls_are_five_minutes_apart_and_its_silence_ends_the_pause() -> None:
    ledger = PolledLedger()
    reader = ledger.reader()
    for _ in range(300):
        await asyncio.sleep(5)
        ledger.head.advance(0)
    assert ledger.times == pytest.approx([1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111, 1411], abs=0.3)
    await asyncio.sleep(60)
    assert ledger.times[12:] == pytest.approx([1530], abs=5)
    reader.cancel()


async def test_only_readers_of_a_chunk_s_segments_are_woken_and_the_others_need_not_read_it() -> None:
    """One that has read compacted objects may be ahead of the others, and they may join while its chunk is read."""
    ledger, ledger.error = PolledLedger(), None
    ledger.segments = {1: [1], 2: [2, 3], 3: [1]}
    ahead = ledger.reader(number=3, segment=1)
    await asyncio.sleep(1.005)
    every = ledger.reader(segment=None)
    readers = [ledger.reader(segment=segment) for segment in (1, 2, 4)]
    ledger.head.advance(3)
    await asyncio.sleep(0.1)

    assert [1] * 3 == await ended(readers[0], every, ahead)
    assert [2] == await ended(readers[1])
    assert (False, 4, [3, 1, 2, 3]) == (readers[2].done(), ledger.tail.number, [number for _, number in ledger.polled])


async def test_a_poll_that_finds_the_chunk_makes_it_durable_and_wakes_its_readers() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)
    ledger.error = None
    await asyncio.sleep(2)

    assert await ended(*readers) == [1] * 2
    assert (1, 1) == (ledger.durable, ledger.head.number)


@pytest.mark.parametrize("error", [ObjectMissingError("no chunk"), StoreUnavailableError("no store")])
async def test_a_chunk_that_was_announced_and_cannot_be_read_wakes_every_reader(error: Exception) -> None:
    ledger, ledger.error = PolledLedger(), error
    readers = [ledger.reader(segment=segment) for segment in (1, 2, None)]
    ledger.head.advance(5)
    assert [1] * 3 == await ended(*readers)


async def test_a_poll_without_a_result_wakes_who_wants_to_do_something_else() -> None:
    ledger = PolledLedger()
    waiting, due = ledger.reader(wake_at=5), ledger.reader(wake_at=0)
    await asyncio.sleep(1.5)
    assert ([1], False) == (await ended(due), waiting.done())


async def test_a_damaged_chunk_fails_all_its_readers_and_is_read_once() -> None:
    ledger = PolledLedger()
    ledger.error = LedgerError("damaged")
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)

    assert [str(reader.exception()) for reader in readers] == ["damaged", "damaged"]
    assert len(ledger.polled) == 1


def close(ledger: PolledLedger, _: Reader) -> None:
    ledger.tail.close()


def leave(_: PolledLedger, reader: Reader) -> None:
    reader.cancel()


@pytest.mark.parametrize("end", [close, leave])
async def test_without_readers_or_when_closed_nothing_is_polled(end: Callable[[PolledLedger, Reader], None]) -> None:
    ledger = PolledLedger()
    reader = ledger.reader()
    await asyncio.sleep(1.5)
    end(ledger, reader)
    await asyncio.sleep(5)

    assert len(ledger.polled) == 1
    reader.cancel()


async def test_the_head_wakes_waiting_readers_and_never_falls():
    head = Head()
    waiting = asyncio.create_task(head.wait_for(3, 10))
    await asyncio.sleep(1)
    head.advance(2)
    await asyncio.sleep(1)
    assert not waiting.done()
    head.advance(5)
    head.advance(4)
    await waiting
    assert 5 == head.number
    assert 2 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
    await head.wait_for(6, 3)
    assert 5 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
