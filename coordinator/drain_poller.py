"""Ask again and again whether sealed segments are drained: often after progress, ever more rarely without.

The poller knows nothing of subscriptions: what to ask about, whom to ask and what to do with the answer are given to
it. It decides only when to ask.

The rules:

1. The first pause is the shortest one, 2 s by default; without progress the next one is twice as long, up to 15 min,
   less up to a tenth, so that many pollers do not fall into step.
2. `reset` cancels the pending sleep and starts again at the shortest pause. It never moves a poll further away:
   progress that keeps coming must not put off for ever what it calls for.
3. `poll_now` asks at once. Called while a check is in flight, it makes another one right after it: the one in
   flight may have looked before whatever the caller has seen.
4. One check at a time. It has a time limit; one that raises, in whatever way, or gives no answer in time, means "not
   drained yet". A check that goes on although it was cancelled keeps the next one from starting.
5. When there is nothing left to ask about, the poller stops; `reset` and `poll_now` start it again.
6. After `close`, nothing is asked, started or reported, whatever is still in flight; `close` cancels and waits.

A checker is a part outside of ours, so what it raises never ends the reign. What `on_drained` raises is a bug of ours:
the poller stops, and `raise_failure` hands it to the owner, who ends the reign.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from headgate.backoff import Backoff, BackoffSchedule
from metrics.events import PollOutcome

JITTER = 0.1
"""The random part of a pause."""
CANCEL_TIMEOUT_SECONDS = 1.0
"""How long a check may take to end once it was cancelled."""

log = structlog.get_logger(__name__)


class DrainPoller:
    """The polls of one subscription."""

    def __init__(
        self,
        *,
        pending: Callable[[], frozenset[int]],
        check: Callable[[frozenset[int]], Awaitable[frozenset[int]]],
        on_drained: Callable[[frozenset[int]], None],
        on_poll: Callable[[PollOutcome], None],
        min_seconds: float,
        max_seconds: float,
        check_timeout_seconds: float,
        rng: random.Random,
        name: str,
    ) -> None:
        """Do nothing yet: `reset` or `poll_now` begins.

        ``pending`` returns what to ask about now. ``on_drained`` gets those of them that are drained, if
        any; ``on_poll`` the outcome of each poll.
        """
        self._pending = pending
        self._check = check
        self._on_drained = on_drained
        self._on_poll = on_poll
        self._check_timeout_seconds = check_timeout_seconds
        self._schedule = BackoffSchedule(
            Backoff(
                first_seconds=min_seconds, longest_seconds=max_seconds, jitter=JITTER, shortest_seconds=min_seconds
            ),
            rng.random,
        )
        self._name = name
        self._closed = False
        self._poll_requested = False
        self._poll_at: float | None = None
        """When the sleep under way ends; None while there is none."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._check_task: asyncio.Task[frozenset[int]] | None = None

    @property
    def running(self) -> bool:
        """Whether a sleep or a check is under way."""
        return self._task is not None and not self._task.done()

    @property
    def next_poll_seconds(self) -> float | None:
        """Until the next poll; 0 while one is under way, None while nothing is planned."""
        if not self.running:
            return None
        if self._poll_at is None:
            return 0.0
        return max(0.0, self._poll_at - asyncio.get_running_loop().time())

    def reset(self) -> None:
        """Start again at the shortest pause; stop if there is nothing to ask about."""
        self._schedule.reset()
        if self.running and self._poll_at is not None:
            self._poll_at = min(self._poll_at, self._begin_pause())
        self._arm()

    def poll_now(self) -> None:
        """Ask at once, or right after the check in flight; later pauses start again at the shortest."""
        self._poll_requested = True
        self._schedule.reset()
        self._arm()

    def raise_failure(self) -> None:
        """Raise what ended the poller, if it was a bug."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """Stop for good; returns once nothing runs any more, or, for a check that will not end, after a second."""
        self._closed = True
        tasks = [task for task in (self._task, self._check_task) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_SECONDS)
        if self._check_task is not None and not self._check_task.done():
            log.error("drain_poll.abandoned", poller=self._name, reason="the check ignores its cancellation")

    def _arm(self) -> None:
        if self._closed:
            return
        if self.running:
            self._wake.set()
        elif self._pending():
            self.raise_failure()
            self._poll_at = None if self._poll_requested else self._begin_pause()
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"drain-poller-{self._name}")
        else:
            self._poll_requested = False

    def _begin_pause(self) -> float:
        """Return when the pause that begins now is over. The next one is twice as long."""
        return asyncio.get_running_loop().time() + self._schedule.next_seconds()

    async def _run(self) -> None:
        while not self._closed:
            due = await self._wait_until_due()
            segments = self._pending()
            if not segments:
                self._poll_requested = False
                return
            if due:
                self._poll_requested = False
                self._poll_at = None
                await self._poll(segments)
                self._poll_at = self._begin_pause()

    async def _wait_until_due(self) -> bool:
        """Sleep until the next poll is due; False if woken, since everything may be different then."""
        self._wake.clear()
        if self._poll_requested:
            return True
        try:
            async with asyncio.timeout_at(self._poll_at):
                await self._wake.wait()
        except TimeoutError:
            return True
        return False

    async def _poll(self, segments: frozenset[int]) -> None:
        outcome, drained = await self._check_with_timeout(segments)
        if self._closed:
            return
        self._on_poll(outcome)
        if drained:
            self._schedule.reset()
            self._on_drained(drained)

    async def _check_with_timeout(self, segments: frozenset[int]) -> tuple[PollOutcome, frozenset[int]]:
        if self._check_task is not None and not self._check_task.done():
            return "stuck", frozenset()
        # In a task of its own: a check that raises before it first waits is then the same case as any other.
        check_task = asyncio.get_running_loop().create_task(self._run_check(segments), name=f"drain-check-{self._name}")
        self._check_task = check_task
        check_task.add_done_callback(_retrieve_exception)
        await asyncio.wait({check_task}, timeout=self._check_timeout_seconds)
        if not check_task.done():
            check_task.cancel()
            await asyncio.wait({check_task}, timeout=CANCEL_TIMEOUT_SECONDS)
            log.warning("drain_poll.timed_out", poller=self._name, seconds=self._check_timeout_seconds)
            return "timed_out", frozenset()
        if check_task.cancelled() or (error := check_task.exception()) is not None:
            reason = "cancelled" if check_task.cancelled() else repr(error)
            log.warning("drain_poll.failed", poller=self._name, reason=reason)
            return "failed", frozenset()
        drained = check_task.result() & segments
        return ("drained" if drained else "waiting"), drained

    async def _run_check(self, segments: frozenset[int]) -> frozenset[int]:
        return await self._check(segments)


def _retrieve_exception(check_task: asyncio.Task[frozenset[int]]) -> None:
    """Take note of how a check ended that nobody waits for any more, so that the loop does not complain about it."""
    if not check_task.cancelled():
        check_task.exception()
