"""The tasks of one consumer, the failure of the first one that failed, and what the consumer's parts share."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from headgate.client.connection import Client
from headgate.client.consuming.acknowledger import Acknowledger
from headgate.client.consuming.consumer_requests import ConsumerRequests
from headgate.client.consuming.record_feed import RecordFeed
from headgate.errors import HeadgateError
from headgate.log.event_log import EventLogger
from headgate.model.entries import SubscriptionType
from headgate.process.background import end_tasks


class ConsumerTasks:
    """Starts tasks. A task that fails ends the consumer, because it would be silent without it."""

    def __init__(self, consumer: str, log: EventLogger) -> None:
        self.failure: HeadgateError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._consumer = consumer
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._consumer}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def fail(self, error: HeadgateError) -> None:
        """Record that the consumer cannot continue. Only the first failure counts."""
        if self.failure is None:
            self.failure = error
            self._log.error("consumer.failed", reason=str(error))
            self.on_failure()

    async def cancel(self) -> None:
        """Cancel all tasks but the calling one, and wait until they have ended."""
        await end_tasks(*(task for task in self._tasks if task is not asyncio.current_task()))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, HeadgateError):
            self.fail(error)
        elif error is not None:
            # A bug: the iterator raises it, with its own traceback as the cause.
            failure = HeadgateError(f"{task.get_name()} failed: {error!r}")
            failure.__cause__ = error
            self.fail(failure)


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What the parts of one consumer share."""

    kind: SubscriptionType
    client: Client
    requests: ConsumerRequests
    feed: RecordFeed
    acknowledger: Acknowledger
    tasks: ConsumerTasks
    log: EventLogger
