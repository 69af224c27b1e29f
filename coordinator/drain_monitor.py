"""Polls the drain check of one subscription, and records the segments that it reports as drained.

1. Polling runs only while there are consumers and undrained sealed segments, and only for types
   that acknowledge.
2. A sealed segment that is acknowledged to its end is checked at once.
3. A result counts only at the seek generation at which its check started.
4. A drain check is installed once and never removed. Without one, only a segment that needs no
   count becomes drained.
5. A segment is recorded only if the leader's own acknowledgements agree (shard.subscriptions.two_witnesses).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from coordinator.drain_poller import DrainPoller
from coordinator.ports import DrainCheck, SubscriptionContext
from headgate.model import entries as e
from metrics import events
from metrics.label_values import PollOutcome
from shard.subscriptions.gate import drained_without_count, tracks_acknowledgements, undrained_sealed
from shard.subscriptions.two_witnesses import DrainClaim, contradiction

CONTRADICTED_REMEDY: Final = "check which ledger the Spark process counts: headgate doctor --daemon-config FILE"

log = structlog.get_logger(__name__)


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
            rng=context.rng,
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
        return "contradicted" if contradicted else "drained" if agreed else "waiting"

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
