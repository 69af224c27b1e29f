"""The head of a shard that readers wait for."""

import asyncio

import pytest

from headgate.reading.tail import Head

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
    await head.wait_for(6, 3)
    assert 5 == pytest.approx(asyncio.get_running_loop().time(), abs=0.1)
