"""A condition is noticed soon, without asking too often, and a wait has a limit."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import until

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("seconds", [0.001, 0.1, 3.0, 50.0])
async def test_a_condition_is_noticed_soon(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    await until(lambda: loop.time() - began >= seconds)

    assert loop.time() - began <= seconds + min(0.05, seconds / 100) + 0.006


async def test_a_wait_ends_at_its_limit_and_asks_some_hundred_times_only() -> None:
    asked = []
    loop = asyncio.get_running_loop()
    began = loop.time()

    with pytest.raises(AssertionError, match=r"not within 20 s"):
        await until(lambda: asked.append(1), 20)

    assert 20 <= loop.time() - began <= 20.01
    assert 300 < len(asked) < 700
