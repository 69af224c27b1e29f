"""Decides when to poll whether sealed segments are drained: exponential backoff that progress resets.

1. The first pause is the shortest, by default 2 s; each pause without progress doubles, up to 15
   min. Jitter shortens it by up to a tenth, so that pollers do not synchronize.
2. `reset` restarts at the shortest pause, but never postpones a poll: continuous progress would
   delay polls forever.
3. `poll_now` polls at once; during a check it schedules another one, because the running check may
   not have seen the caller's event.
4. One check runs at a time, with a timeout. A failed check means "not drained yet".
5. Without pending segments the poller stops, until `reset` or `poll_now`.
6. `close` cancels the running check and waits for it. After it, nothing is checked, started or
   reported.

7. Claims that the owner contradicts are no progress: the pause grows.

The check is external, so its failures never end the term. An exception in `on_answer` is a bug:
the poller stops, and `raise_failure` raises it to the owner.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

import structlog

from coordinator.settings import CoordinatorSettings
from headgate.backoff import Backoff, BackoffSchedule
from metrics.label_values import PollOutcome
from shard.subscriptions.two_witnesses import DrainClaim

JITTER = 0.1
"""Largest fraction by which a pause is shortened."""

log = structlog.get_logger(__name__)


class DrainPoller:
    def __init__(
        self,
        *,
        pending: Callable[[], frozenset[int]],
        check: Callable[[frozenset[int]], Awaitable[Mapping[int, DrainClaim]]],
        on_answer: Callable[[Mapping[int, DrainClaim]], PollOutcome],
        on_poll: Callable[[PollOutcome], None],
        settings: CoordinatorSettings,
        rng: random.Random,
        name: str,
    ) -> None:
        """Create an idle poller; `reset` or `poll_now` starts it.

        ``pending`` returns the segments to check now. ``on_answer`` receives the claims
        of each answered check, and returns what came of them. ``on_poll`` receives the outcome of each poll.
        """
        self._pending = pending
        self._check = check
        self._on_answer = on_answer
        self._on_poll = on_poll
        self._timeout_seconds = settings.poll_check_timeout_seconds
        first, longest = settings.poll_min_seconds, settings.poll_max_seconds
        pauses = Backoff(first_seconds=first, longest_seconds=longest, jitter=JITTER, shortest_seconds=first)
        self._schedule = BackoffSchedule(pauses, rng.random)
        self._name = name
        self._closed = False
        self._poll_requested = False
        self._poll_at: float | None = None
        """End of the current sleep; None if there is none."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._check_began_at: float | None = None
        self.problem: str | None = None
        """Why the last check failed; None after one that was answered."""

    @property
    def running(self) -> bool:
        """Whether a sleep or a check is in progress."""
        return self._task is not None and not self._task.done()

    @property
    def next_poll_seconds(self) -> float | None:
        """Time until the next poll; 0 during a poll, None if none is scheduled."""
        if not self.running:
            return None
        return 0.0 if self._poll_at is None else max(0.0, self._poll_at - asyncio.get_running_loop().time())

    @property
    def check_seconds(self) -> float | None:
        """How long the running check has not been answered; None: none is running."""
        began = self._check_began_at
        return None if began is None else asyncio.get_running_loop().time() - began

    def reset(self) -> None:
        """Restart at the shortest pause; stop if no segment is pending."""
        self._schedule.reset()
        if self.running and self._poll_at is not None:
            self._poll_at = min(self._poll_at, self._begin_pause())
        self._arm()

    def poll_now(self) -> None:
        """Poll at once, or right after the running check; then restart at the shortest pause."""
        self._poll_requested = True
        self._schedule.reset()
        self._arm()

    def raise_failure(self) -> None:
        """Raise the exception that stopped the poller, if any."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """Stop permanently. Returns once no task runs."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

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
        """Return the end of the pause that starts now. The next one is twice as long."""
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
        """Sleep until the next poll is due; return False if woken early, because the state may have changed."""
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
        self._check_began_at = asyncio.get_running_loop().time()
        try:
            outcome, claims = await self._check_in_time(segments)
        finally:
            self._check_began_at = None
        if self._closed:
            return
        if outcome == "waiting":
            outcome = self._on_answer(claims)
        if outcome == "drained":
            self._schedule.reset()
        self._on_poll(outcome)

    async def _check_in_time(self, segments: frozenset[int]) -> tuple[PollOutcome, Mapping[int, DrainClaim]]:
        poller = asyncio.current_task()
        assert poller is not None, "only the poller's own task checks"
        try:
            async with asyncio.timeout(self._timeout_seconds) as limit:
                claims = await self._check(segments)
            self.problem = None
            return "waiting", {each: claim for each, claim in claims.items() if each in segments}
        except asyncio.CancelledError:
            if poller.cancelling():
                raise
            self.problem = "the last one was cancelled"
        except Exception as error:  # noqa: BLE001 - whatever the check raises, the term continues and the gate stays closed
            if limit.expired():
                log.warning("drain_poll.timed_out", poller=self._name, seconds=self._timeout_seconds)
                self.problem = f"the last one had no answer within {self._timeout_seconds:g} s"
                return "timed_out", {}
            self.problem = str(error) or repr(error)
        log.warning("drain_poll.failed", poller=self._name, reason=self.problem)
        return "failed", {}
