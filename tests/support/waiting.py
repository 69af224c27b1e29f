"""Waiting for a condition, in real and in virtual time.

A limit that passes is a failure, so a long one costs nothing while things work: the machine may be slow and busy. Only
a test that is about "how soon" names a limit of its own, one that a slow machine keeps all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once ``condition()`` holds; fails the test if it does not within ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.005)


async def never(condition: Callable[[], object], seconds: float) -> None:
    """Return after ``seconds``; fails the test if ``condition()`` holds before."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline:
        assert not condition(), "it happened"
        await asyncio.sleep(max(0.005, seconds / 100))
