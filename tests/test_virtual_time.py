"""Fixtures of a test in virtual time are in virtual time too, and on the clock of the test."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

AN_HOUR = 3600
"""Far beyond the time limit of a test."""


@pytest.fixture
async def began() -> AsyncIterator[float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(AN_HOUR)
    yield began
    await asyncio.sleep(AN_HOUR)
    assert loop.time() - began == pytest.approx(3 * AN_HOUR)


@pytest.mark.looptime
async def test_virtual_time_begins_before_the_fixtures_and_ends_after_them(began: float) -> None:
    loop = asyncio.get_running_loop()
    assert loop.time() - began == pytest.approx(AN_HOUR)

    await asyncio.sleep(AN_HOUR)


@pytest.mark.looptime
async def test_the_threads_of_a_test_may_take_real_time_to_end() -> None:
    """The loop is closed in real time. Since Python 3.12 it waits five minutes for them, which would be over at once."""
    executor = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    executor.submit(time.sleep, 0.1)


async def test_other_tests_are_in_real_time() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()

    await asyncio.sleep(0.01)

    assert 0.01 <= loop.time() - before < AN_HOUR
