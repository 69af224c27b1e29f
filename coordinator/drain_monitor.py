"""Polls the drain check of one subscription, and records the segments that it reports as drained.

1. Polling runs only while there are consumers and undrained sealed segments, and only for types that acknowledge.
2. A sealed segment that is acknowledged to its end is checked at once.
3. A result counts only at the seek generation at which its check started.
4. A drain check is installed once and never removed. Without one, only a segment that needs no count becomes drained.
5. A segment is recorded only if the leader's own acknowledgements agree (shard.subscriptions.two_witnesses).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

import structlog

from coordinator.context import CoordinatorSettings, DrainCheck, SubscriptionContext
from headgate.backoff import Backoff, BackoffSchedule
from headgate.model import entries as e
from headgate.process.background import end_tasks
from metrics import events
from metrics.label_values import PollOutcome
from shard.subscriptions.gate import drained_without_count, tracks_acknowledgements, undrained_sealed
from shard.subscriptions.two_witnesses import DrainClaim, contradiction

JITTER = 0.1
"""Largest fraction by which a pause is shortened."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class DrainPoller:
    """Decides when to poll whether sealed segments are drained: exponential backoff that progress resets.

    1. The first pause is the shortest, by default 2 s; each pause without progress doubles, up to 15 min. Jitter
       shortens it by up to a tenth, so that pollers do not synchronize.
    2. `reset` restarts at the shortest pause, but never postpones a poll: continuous progress would delay polls
       forever.
    3. `poll_now` polls at once; during a check it schedules another one, because the running check may not have seen
       the caller's event.
    4. One check runs at a time, with a timeout. A failed check means "not drained yet".
    5. A new poller is idle. Without pending segments it stops, until `reset` or `poll_now`.
    6. `close` cancels the running check and waits for it. After it, nothing is checked, started or reported.
    7. Claims that the owner contradicts are no progress: the pause grows.

    The check is external, so its failures never end the term. An exception in `on_answer` is a bug: the poller stops,
    and `raise_failure` raises it to the owner.
    """

    pending: Callable[[], frozenset[int]]
    """Returns the segments to check now."""
    check: Callable[[frozenset[int]], Awaitable[Mapping[int, DrainClaim]]]
    on_answer: Callable[[Mapping[int, DrainClaim]], PollOutcome]
    """Receives the claims of each answered check, and returns what came of them."""
    on_poll: Callable[[PollOutcome], None]
    """Receives the outcome of each poll."""
    settings: CoordinatorSettings
    chance: InitVar[Callable[[], float]]
    name: str
    problem: str | None = None
    """Why the last check failed; None after one that was answered."""
    _closed: bool = False
    _poll_requested: bool = False
    _poll_at: float | None = None
    """End of the current sleep; None if there is none."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _check_began_at: float | None = None

    def __post_init__(self, chance: Callable[[], float]) -> None:
        first, longest = self.settings.poll_min_seconds, self.settings.poll_max_seconds
        pauses = Backoff(first_seconds=first, longest_seconds=longest, jitter=JITTER, shortest_seconds=first)
        self._schedule = BackoffSchedule(pauses, chance)

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

    def close(self) -> Coroutine[Any, Any, None]:
        """Stop permanently, now. What is returned waits until no task runs."""
        self._closed = True
        return end_tasks(*filter(None, [self._task]))

    def _arm(self) -> None:
        if self._closed:
            return
        if self.running:
            self._wake.set()
        elif self.pending():
            self.raise_failure()
            self._poll_at = None if self._poll_requested else self._begin_pause()
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"drain-poller-{self.name}")
        else:
            self._poll_requested = False

    def _begin_pause(self) -> float:
        """Return the end of the pause that starts now. The next one is twice as long."""
        return asyncio.get_running_loop().time() + self._schedule.next_seconds()

    async def _run(self) -> None:
        while not self._closed:
            due = await self._wait_until_due()
            segments = self.pending()
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
            outcome = self.on_answer(claims)
        if outcome == "drained":
            self._schedule.reset()
        self.on_poll(outcome)

    async def _check_in_time(self, segments: frozenset[int]) -> tuple[PollOutcome, Mapping[int, DrainClaim]]:
        poller = asyncio.current_task()
        assert poller is not None, "only the poller's own task checks"
        try:
            async with asyncio.timeout(self.settings.poll_check_timeout_seconds) as limit:
                claims = await self.check(segments)
            self.problem = None
            return "waiting", {each: claim for each, claim in claims.items() if each in segments}
        except asyncio.CancelledError:
            if poller.cancelling():
                raise
            self.problem = "the last one was cancelled"
        except Exception as error:  # noqa: BLE001 - whatever the check raises, the term continues and the gate stays closed
            if limit.expired():
                log.warning("drain_poll.timed_out", poller=self.name, seconds=self.settings.poll_check_timeout_seconds)
                self.problem = (
                    f"the last one took over {self.settings.poll_check_timeout_seconds:g} s (drain.run_timeout_seconds)"
                )
                return "timed_out", {}
            self.problem = str(error) or repr(error)
        log.warning("drain_poll.failed", poller=self.name, reason=self.problem)
        return "failed", {}


CONTRADICTED_REMEDY: Final = "check which ledger the Spark process counts: headgate doctor --daemon-config FILE"


class DrainMonitor:
    """The drained segments of one subscription during one leader term."""

    def __init__(self, context: SubscriptionContext, on_drained: Callable[[], None]) -> None:
        """``on_drained`` is called after drained segments have been proposed."""
        self._context = context
        self._subscription, self._topic = subscription, topic = context.subscription, context.topic
        self._on_drained = on_drained
        self._log = log.bind(topic=topic.name, subscription=subscription.name)
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._end_reached_at: dict[int, float] = {}
        """Sealed segment, not recorded as drained → when this leader saw its last acknowledgement."""
        self._checked_seek_generation = subscription.seek_generation
        self.contradicted: Mapping[int, str] = {}
        """Segment → what contradicts the last check's claim that it is drained."""
        self._drain_check: DrainCheck | None = None
        self.poller = DrainPoller(
            pending=self._undrained,
            check=self._check,
            on_answer=self.record,
            on_poll=lambda outcome: context.observer.observe(events.DrainPollCompleted(outcome=outcome)),
            settings=context.settings,
            chance=context.chance,
            name=f"{topic.name}/{subscription.name}",
        )

    @property
    def installed(self) -> bool:
        return self._drain_check is not None

    def install(self, drain_check: DrainCheck | None) -> None:
        """Start polling ``drain_check``. Does nothing if it is None or one is installed."""
        if drain_check is None:
            self._log.warning("drain_checker.missing", reason="children of sealed segments stay blocked")
        elif not self.installed:
            self._drain_check = drain_check
            self._log.debug("drain_checker.installed", type=self._subscription.type)
            self.wake()

    def wake(self) -> None:
        """Restart polling after progress: at once if a sealed segment is acknowledged to its end."""
        # Also forgets pruned segments. A prune leaves it to this call, which has a turn of its own.
        known = self._topic.layout.segments
        self._end_reached_at = {segment: at for segment, at in self._end_reached_at.items() if segment in known}
        reached = [segment for segment in self._undrained() if self._is_end_reached(segment)]
        self._record_reached_ends(reached)
        if reached:
            self.poller.poll_now()
        else:
            self.poller.reset()

    def acknowledged(self, segments: Iterable[int]) -> None:
        """Poll at once if an acknowledgement in ``segments``, already applied, reached a sealed end."""
        reached = {segment for segment in segments if self._is_end_reached(segment)}
        if reached:
            self._record_reached_ends(reached)
            self.poller.poll_now()

    def positions_changed(self) -> None:
        """Forget what was known about the positions before a seek."""
        self._end_reached_at.clear()
        self.contradicted = {}

    def record(self, claims: Mapping[int, DrainClaim]) -> PollOutcome:
        """Propose the sealed, unrecorded segments in the last check's ``claims`` that the leader agrees with."""
        if self._checked_seek_generation != self._subscription.seek_generation:
            return "waiting"
        segments = sorted(claims.keys() & undrained_sealed(self._topic.layout, self._subscription.drained))
        contradicted = self._contradicted(segments, claims)
        agreed = [segment for segment in segments if segment not in contradicted]
        if agreed:
            self._record(agreed)
        if contradicted:
            return "contradicted"
        return "drained" if agreed else "waiting"

    def _contradicted(self, segments: Iterable[int], claims: Mapping[int, DrainClaim]) -> Mapping[int, str]:
        """Return the claims that the leader vetoes; report each once while it stays the same."""
        judged = {each: contradiction(self._subscription, self._topic, each, claims[each]) for each in segments}
        found = {segment: reason for segment, reason in judged.items() if reason is not None}
        for segment, reason in found.items():
            if self.contradicted.get(segment) != reason:
                self._log.error("drain_check.contradicted", segment=segment, reason=reason, remedy=CONTRADICTED_REMEDY)
        self.contradicted = found
        return found

    def _record(self, segments: list[int]) -> None:
        waited_seconds = self._loop.time() - max(self._end_reached_at.get(each, self._started_at) for each in segments)
        self._propose(segments)
        self._log.info("segments.drained", segments=segments, waited_seconds=round(waited_seconds, 3))
        self._context.observer.observe(events.SegmentsDrained(count=len(segments), waited_seconds=waited_seconds))
        # No wake-up: after a drained segment the poller continues at its shortest pause.
        self._on_drained()

    def record_uncounted(self) -> bool:
        """Propose the sealed segments that are drained without a count; return whether there are any."""
        subscription = self._subscription
        segments = drained_without_count(
            self._topic.layout, subscription.drained, subscription.type, subscription.progress.start_positions
        )
        if segments:
            self._propose(segments)
            self._log.info("segments.drained", segments=segments, waited_seconds=0.0)
            self._context.observer.observe(events.SegmentsDrained(count=len(segments), waited_seconds=0.0))
        return bool(segments)

    def _propose(self, segments: list[int]) -> None:
        for segment in segments:
            self._end_reached_at.pop(segment, None)
        generation = self._subscription.seek_generation
        self._context.ledger.propose(
            e.SegmentsDrained(**self._subscription.ids, segments=segments, seek_generation=generation)
        )

    async def _check(self, segments: frozenset[int]) -> Mapping[int, DrainClaim]:
        assert self._drain_check is not None, "without a check no segment is pending"
        # The result holds for the current positions: a seek before it arrives invalidates it.
        self._checked_seek_generation = self._subscription.seek_generation
        return await self._drain_check(self._subscription, segments)

    def _undrained(self) -> frozenset[int]:
        asks = self.installed and bool(self._subscription.consumers)
        if not asks or not tracks_acknowledgements(self._subscription.type):
            return frozenset()
        return undrained_sealed(self._topic.layout, self._subscription.drained)

    def _is_end_reached(self, segment: int) -> bool:
        """Return whether a sealed segment is acknowledged to its end but not recorded as drained."""
        known = self._topic.layout.segments.get(segment)
        return (
            known is not None
            and known.end_offset is not None
            and segment not in self._subscription.drained
            and self._subscription.position(segment) >= known.end_offset
        )

    def _record_reached_ends(self, segments: Iterable[int]) -> None:
        for segment in segments:
            self._end_reached_at.setdefault(segment, self._loop.time())
