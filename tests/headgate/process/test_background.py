"""Background tasks end with their owner, and their failures are raised."""

import asyncio

import pytest

from headgate.process.background import BackgroundService, cancel_and_wait
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


class Counter(BackgroundService):
    task_name = "counter"

    def __init__(self, limit: int | None = None) -> None:
        self.count = 0
        self.limit = limit

    async def _run(self) -> None:
        while self.count != self.limit:
            self.count += 1
            await asyncio.sleep(0)
        raise ZeroDivisionError


async def test_a_service_runs_from_entry_to_exit() -> None:
    async with Counter() as counter:
        await until(lambda: counter.count > 1)

    assert [] == [task for task in asyncio.all_tasks() if task.get_name() == "counter"]


async def test_the_failure_of_a_service_is_raised_at_exit() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Counter(limit=1) as counter:
            await until(lambda: counter.count == 1)


async def test_cancelling_the_caller_is_not_swallowed() -> None:
    """A task that takes long to end does not hide that its owner is cancelled as well."""

    async def ends_slowly() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)

    slow = asyncio.create_task(ends_slowly())
    await asyncio.sleep(0)
    owner = asyncio.create_task(cancel_and_wait(slow))
    await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    await cancel_and_wait(slow)


async def test_all_tasks_end_before_a_failure_is_raised() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    failing, waiting = asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        await cancel_and_wait(failing, waiting)

    assert waiting.cancelled()
