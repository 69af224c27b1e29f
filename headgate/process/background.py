"""Owns background tasks: cancels and awaits each one, and raises its failure."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, Self, TypeVar

T = TypeVar("T")


async def end_tasks(*tasks: asyncio.Task[Any], seconds: float | None = None) -> None:
    """Cancel ``tasks``, and wait until all have ended, however they end, or for ``seconds``.

    Unlike ``await task``, this does not confuse a cancellation of the caller with that of a task.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # Retrieved, so that it is not reported as forgotten.


async def gathered(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Return what ``work`` returns. Once one fails, or the caller is cancelled, the others end: nothing runs on."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(*tasks)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Do as `end_tasks`, and raise the first failure: only a bug causes one."""
    await end_tasks(*tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


class BackgroundService(ABC):
    """An async context manager that runs one task from entry to exit."""

    task_name: ClassVar[str]
    _task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _run(self) -> None:
        """Run until cancelled."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.task_name)
        return self

    async def __aexit__(self, *_: object) -> None:
        task, self._task = self._task, None
        assert task is not None, "closed twice"
        await cancel_and_wait(task)
