"""One poll for all readers at the tail, which sleep until there is something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.reading.head import Head
from headgate.reading.tail_poll import TailPoll

pytestmark = pytest.mark.looptime
NEVER = float("inf")


class PolledLedger:
    """Chunks, of which the next one may be missing, and readers that wait for it."""

    def __init__(self) -> None:
        self.head = Head()
        self.polled: list[tuple[float, int]] = []
        """Loop time and chunk of each poll."""
        self.error: Exception | None = ObjectMissingError("no chunk")
        self.missing: set[int] = set()
        """Chunks that are missing whatever ``error`` is."""
        self.tail = TailPoll(self._start)
        self._tasks: set[asyncio.Task[None]] = set()

    def reader(self, wake_at: float = NEVER, number: int = 1) -> asyncio.Task[bool]:
        return asyncio.create_task(self.tail.wait_for(self.head, number, wake_at))

    def _start(self, number: int) -> asyncio.Task[None]:
        task = asyncio.create_task(self._read(number))
        self._tasks.add(task)
        return task

    async def _read(self, number: int) -> None:
        self.polled.append((asyncio.get_running_loop().time(), number))
        await asyncio.sleep(0.01)
        if number in self.missing:
            raise ObjectMissingError("no chunk")
        if self.error is not None:
            raise self.error

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.polled]


async def ended(*readers: asyncio.Task[bool]) -> list[bool]:
    return await asyncio.wait_for(asyncio.gather(*readers), 0.1)


async def test_all_readers_share_one_poll_a_second_and_sleep_while_it_finds_nothing() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(5)]
    await asyncio.sleep(5.5)

    assert ledger.times == pytest.approx([1, 2.01, 3.02, 4.03, 5.04])
    assert not any(reader.done() for reader in readers)
    ledger.head.advance(1)
    assert await ended(*readers) == [True] * 5


async def test_a_poll_that_finds_the_chunk_wakes_its_readers() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)
    ledger.error = None
    await asyncio.sleep(1)

    assert await ended(*readers) == [True, True]


async def test_a_damaged_chunk_fails_all_its_readers_and_is_read_once() -> None:
    ledger = PolledLedger()
    ledger.error = LedgerError("damaged")
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)

    assert [str(reader.exception()) for reader in readers] == ["damaged", "damaged"]
    assert len(ledger.polled) == 1


async def test_readers_of_different_chunks_are_polled_for_each() -> None:
    """One that has just read compacted objects is ahead of the others."""
    ledger = PolledLedger()
    ledger.missing = {1}
    ledger.error = None
    behind, ahead = ledger.reader(), ledger.reader(number=4)
    await asyncio.sleep(1.5)

    assert [number for _, number in ledger.polled] == [1, 4]
    assert await ended(ahead) == [True]
    assert not behind.done()
    await asyncio.sleep(1)
    assert [number for _, number in ledger.polled] == [1, 4, 1]
    behind.cancel()


async def test_a_reader_is_woken_by_the_first_poll_without_a_result_after_its_time() -> None:
    ledger = PolledLedger()
    early, late = ledger.reader(wake_at=0), ledger.reader(wake_at=2.5)
    await asyncio.sleep(1.02)
    assert await ended(early) == [False]
    await asyncio.sleep(1.9)
    assert not late.done()
    await asyncio.sleep(0.3)
    assert await ended(late) == [False]


async def test_an_unreachable_store_is_polled_on() -> None:
    ledger = PolledLedger()
    ledger.error = StoreUnavailableError("out")
    reader = ledger.reader(wake_at=0)
    await asyncio.sleep(3.5)

    assert len(ledger.polled) == 3
    assert not reader.done()
    ledger.error = None
    await asyncio.sleep(1)
    assert await ended(reader) == [True]


async def test_the_second_begins_again_when_the_head_advances() -> None:
    ledger = PolledLedger()
    reader = ledger.reader(number=2)
    await asyncio.sleep(0.6)
    ledger.head.advance(1)
    await asyncio.sleep(0.6)
    assert ledger.polled == []
    await asyncio.sleep(0.5)
    assert ledger.polled == [(pytest.approx(1.6), 2)]
    reader.cancel()


async def test_a_reader_that_arrives_later_does_not_postpone_the_poll() -> None:
    ledger = PolledLedger()
    ledger.head.advance(5)
    first = ledger.reader(number=6)
    await asyncio.sleep(0.6)
    second = ledger.reader(number=6)
    await asyncio.sleep(0.5)
    assert ledger.polled == [(1.0, 6)]
    first.cancel()
    second.cancel()


async def test_a_reader_that_is_not_due_sleeps_on_after_another_one_was_woken() -> None:
    ledger = PolledLedger()
    wakes: list[float] = []
    wake = ledger.head.wake
    ledger.head.wake = lambda: (wakes.append(asyncio.get_running_loop().time()), wake())[1]  # type: ignore[method-assign]
    early, late = ledger.reader(wake_at=0), ledger.reader(wake_at=60)
    await asyncio.sleep(10)
    assert await ended(early) == [False]
    assert wakes == [pytest.approx(1.01)]
    late.cancel()


async def test_only_a_poll_ends_the_wait_of_a_reader_that_is_due() -> None:
    """Not the announcement of an earlier chunk."""
    ledger = PolledLedger()
    early, late = ledger.reader(number=3, wake_at=0), ledger.reader(number=3, wake_at=1.5)
    await asyncio.sleep(1.6)
    assert await ended(early) == [False]
    ledger.head.advance(1)
    await asyncio.sleep(0.5)
    assert not late.done()
    await asyncio.sleep(1)
    assert await ended(late) == [False]


async def test_what_an_earlier_poll_has_found_says_nothing_about_a_later_one() -> None:
    ledger = PolledLedger()
    ledger.error = LedgerError("damaged")
    first = ledger.reader()
    await asyncio.sleep(1.5)
    assert str(first.exception()) == "damaged"
    ledger.error = ObjectMissingError("it was deleted")
    second = ledger.reader(wake_at=0)
    await asyncio.sleep(2)
    assert await ended(second) == [False]


async def test_a_cancelled_load_is_no_unhandled_error() -> None:
    ledger = PolledLedger()
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    reader = ledger.reader()
    await asyncio.sleep(1.005)
    for task in ledger._tasks:
        task.cancel()
    await asyncio.sleep(1)
    assert unhandled == []
    reader.cancel()


async def test_a_poll_that_was_overtaken_by_the_head_wakes_no_reader_of_later_chunks() -> None:
    ledger = PolledLedger()
    first = ledger.reader()
    ledger.error = None
    await asyncio.sleep(1.005)
    ledger.head.advance(1)
    assert await ended(first) == [True]
    second = ledger.reader(number=2)
    ledger.error = ObjectMissingError("no chunk")
    await asyncio.sleep(0.5)
    assert not second.done()
    await asyncio.sleep(1)
    assert [number for _, number in ledger.polled] == [1, 2], "and polls on for them"
    second.cancel()


def close(ledger: PolledLedger, _: asyncio.Task[bool]) -> None:
    ledger.tail.close()


def leave(_: PolledLedger, reader: asyncio.Task[bool]) -> None:
    reader.cancel()


@pytest.mark.parametrize("end", [close, leave])
async def test_without_readers_or_when_closed_nothing_is_polled(
    end: Callable[[PolledLedger, asyncio.Task[bool]], None],
) -> None:
    ledger = PolledLedger()
    reader = ledger.reader()
    await asyncio.sleep(1.5)
    end(ledger, reader)
    await asyncio.sleep(5)

    assert len(ledger.polled) == 1
    reader.cancel()
