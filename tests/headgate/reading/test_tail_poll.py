"""One poll for all readers at the tail, which sleep until there is something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headgate.errors import LedgerError, ObjectMissingError
from headgate.reading.head import Head, TailPoll

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


async def test_all_readers_share_polls_that_grow_rare_and_sleep_while_they_find_nothing() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(5)]
    await asyncio.sleep(95)

    assert ledger.times == pytest.approx([1, 3.01, 7.02, 15.03, 31.04, 61.05, 91.06])
    assert not any(reader.done() for reader in readers)
    ledger.head.advance(1)
    assert await ended(*readers) == [True] * 5

    reader = ledger.reader(number=2)
    await asyncio.sleep(1.1)
    assert ledger.times[-1] == pytest.approx(96.0, abs=0.1), "a second after the head has changed"
    reader.cancel()


async def test_a_poll_that_finds_the_chunk_wakes_its_readers() -> None:
    ledger = PolledLedger()
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)
    ledger.error = None
    await asyncio.sleep(2)

    assert await ended(*readers) == [True, True]


async def test_a_damaged_chunk_fails_all_its_readers_and_is_read_once() -> None:
    ledger = PolledLedger()
    ledger.error = LedgerError("damaged")
    readers = [ledger.reader() for _ in range(2)]
    await asyncio.sleep(1.5)

    assert [str(reader.exception()) for reader in readers] == ["damaged", "damaged"]
    assert len(ledger.polled) == 1


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
