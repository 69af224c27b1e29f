"""Answers about thousands of segments: computed in steps over turns of the loop, one after the other.

1. All steps of an answer see the same state. After a change it begins again, and after
   `MAX_RESTARTS` it takes all steps in one turn: people ask most while much changes.
2. A short answer is complete in the turn of its request.
3. Only the first answer is under way, so the memory that answers take is that of one. At most
   `MAX_WAITING_ANSWERS` wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from controller.decisions.handlers import Deferred
from controller.leader.spread_work import SpreadWork
from coordinator.decisions.refusal import Refusal
from coordinator.reporting.steps import Steps, complete
from headgate.protocol import messages as m

Answer = m.AnyReplyBody | Refusal

MAX_RESTARTS = 3
MAX_WAITING_ANSWERS = 100


class AnswerQueue:
    """The answers of one leader term that are under way."""

    def __init__(self, work: SpreadWork) -> None:
        self._work = work
        self._waiting: deque[_Pending] = deque()

    def defer(self, begin: Callable[[], Steps[Answer]], version: Callable[[], object]) -> Deferred | Refusal:
        """Compute an answer in the steps of ``begin``. ``version`` changes with the state that they read."""
        if len(self._waiting) >= MAX_WAITING_ANSWERS:
            return Refusal("unavailable", f"{MAX_WAITING_ANSWERS} earlier answers are not complete: ask again later")
        return Deferred(partial(self._append, begin, version))

    def _append(
        self, begin: Callable[[], Steps[Answer]], version: Callable[[], object], reply: Callable[[Answer], None]
    ) -> None:
        self._waiting.append(_Pending(begin, version, reply))
        if len(self._waiting) == 1:
            self._work.do(1, self._take_step)

    def _take_step(self) -> None:
        cost = self._waiting[0].take_step()
        if cost is not None:
            self._work.do(cost, self._take_step)
            return
        self._waiting.popleft()
        if self._waiting:
            self._work.do_later(1, self._take_step)


class _Pending:
    def __init__(
        self, begin: Callable[[], Steps[Answer]], version: Callable[[], object], reply: Callable[[Answer], None]
    ) -> None:
        self._begin = begin
        self._version = version
        self._reply = reply
        self._restarts = 0
        self._seen = version()
        self._steps = begin()

    def take_step(self) -> int | None:
        """Take the next step; return the cost of the one after it, None after the reply."""
        if self._version() != self._seen:
            self._restarts += 1
            self._seen, self._steps = self._version(), self._begin()
        if self._restarts > MAX_RESTARTS:
            self._reply(complete(self._steps))
            return None
        try:
            return next(self._steps)
        except StopIteration as stop:
            answer: Answer = stop.value
        self._reply(answer)
        return None
