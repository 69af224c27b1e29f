"""The head of a shard that readers wait for."""

from __future__ import annotations

import asyncio

import pytest

from headgate.reading.head import Head

pytestmark = pytest.mark.looptime


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


async def test_readers_that_wait_for_the_head_end_together_when_the_first_time_has_passed() -> None:
    head = Head()
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def wait(number: int, seconds: float) -> None:
        await head.wait_for(number, seconds)
        ended.append(loop.time())

    await asyncio.gather(*(wait(1, seconds) for seconds in (3, 1, 2, 1)))
    assert [1, 1, 1, 1] == pytest.approx(ended, abs=0.01)

    ended.clear()
    waiting = asyncio.gather(wait(1, 2), wait(2, 3))
    await asyncio.sleep(1)
    head.advance(1)
    await waiting
    assert [2, 4] == pytest.approx(ended, abs=0.01), "an advance leaves the time of the others as it is"
