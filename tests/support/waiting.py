"""Wait for a condition, in real or in virtual time.

The default limit is long because the machine may be busy, and it costs nothing while tests pass. A test states its own
limit only if the property is a time limit.
"""

import asyncio
from collections.abc import Callable

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 0.05
"""Seconds between two looks at a condition: a hundredth of the wait until then, between these limits."""


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return when ``condition()`` is true; fail the test after ``seconds``."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        waited = loop.time() - began
        assert waited < seconds, f"not within {seconds} s"
        await asyncio.sleep(max(SHORTEST_PAUSE, min(waited / 100, seconds - waited, LONGEST_PAUSE)))


async def never(condition: Callable[[], object], seconds: float) -> None:
    """Return after ``seconds``; fail the test if ``condition()`` becomes true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline:
        assert not condition(), "the condition became true"
        await asyncio.sleep(max(0.005, seconds / 100))
