"""Requests about thousands of segments: answered in steps over turns of the loop, one after the other.

1. A short answer is complete in the turn of its request.
2. Only the first answer is under way, so the memory that answers take is that of one. At most
   `MAX_WAITING_REQUESTS` wait, each with its message.
3. A query reads a snapshot that its first step takes. A command reads the state itself: its last
   step must decide for the state that it finds (see `shard.requests.handlers.Stepwise`).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from controller.context.step_driver import StepDriver
from shard.requests.handlers import Outcome, StepResult
from shard.steps import Steps
from shard.subscriptions.refusal import Refusal

MAX_WAITING_REQUESTS: Final = 64
"""Large requests that wait on one shard, the first one included. An import keeps a message of megabytes."""

Finish = Callable[[Outcome], None]


class RequestQueue:
    """The requests of one leader term that are being answered in steps."""

    def __init__(self, driver: StepDriver) -> None:
        self._driver = driver
        self._waiting: deque[tuple[Steps[StepResult], Finish]] = deque()
        self._answering = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, steps: Steps[StepResult], finish: Finish) -> None:
        """Call ``finish`` with the result of ``steps``, in the turn of the last one, or with a refusal now."""
        if len(self._waiting) >= MAX_WAITING_REQUESTS:
            finish(
                Refusal("unavailable", f"{MAX_WAITING_REQUESTS} earlier requests are not answered yet: ask again later")
            )
            return
        self._waiting.append((steps, finish))
        if not self._answering:
            self._driver.begin(self._answer_all())

    def _answer_all(self) -> Steps[None]:
        self._answering = True
        while self._waiting:
            steps, finish = self._waiting[0]
            result = yield from steps
            self._waiting.popleft()
            finish(result)
        self._answering = False
