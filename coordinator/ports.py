"""What a subscription coordinator needs from outside: its ledger, the drain check, its settings, its observer.

The leader of the shard provides the ledger and the drain check, the daemon the settings, and metrics the observer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from coordinator.state.subscription import Subscription
from headgate.model import entries as e
from headgate.protocol import messages as m

PollOutcome = Literal["drained", "waiting", "failed", "timed_out", "stuck"]
"""How a poll ended: something is drained, nothing is, the check raised, it gave no answer in time, or the one before
still has not ended although it was cancelled."""

WeightChange = Literal["initial", "increased", "decreased"]
"""How the weight of a segment that is balanced by load changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Durations; the daemon's settings hold the defaults and the reasons for them."""

    grace_seconds: float
    """How long a silent consumer keeps what it holds."""
    revoke_timeout_seconds: float
    """How long a holder may take to confirm a revocation."""
    heartbeat_interval_seconds: float
    """How often consumers are told to say that they live."""
    poll_min_seconds: float
    """Shortest pause before a drain poll."""
    poll_max_seconds: float
    """Longest pause before a drain poll."""
    poll_check_timeout_seconds: float
    """How long one drain check may take."""


class LedgerPort(Protocol):
    """The shard's ledger."""

    @property
    def durable(self) -> int:
        """Number of the newest durable chunk."""

    def propose(self, *entries: e.AnyEntry) -> None:
        """Fold ``entries`` into the subscription at once, and make them part of the next chunk."""


class PushMessage(Protocol):
    """Sends messages to clients."""

    def __call__(self, client_id: str, message: m.Push, /) -> None:
        """Send ``message`` once all entries proposed so far are durable. It may be lost, duplicated or delayed."""


class DrainCheck(Protocol):
    """Finds out which sealed segments a subscription has drained."""

    async def __call__(self, subscription: Subscription, segments: frozenset[int], /) -> frozenset[int]:
        """Return those of the sealed ``segments`` that are drained at the current seek generation.

        A segment that is missing from the result is not drained yet. So are all segments if the check raises or hangs.
        """


class CoordinatorObserver(Protocol):
    """Who is told of what happens in subscriptions (metrics). One observer serves all of them."""

    def consumer_registered(self) -> None:
        """Tell of a consumer that joined or replaced another incarnation."""

    def consumer_reconnected(self) -> None:
        """Tell of a consumer that came back within its grace period."""

    def consumer_disconnected(self) -> None:
        """Tell of a consumer that went silent: its grace period begins."""

    def consumer_removed(self, reason: e.LeaveReason) -> None:
        """Tell of a consumer that left, was replaced or was evicted."""

    def segment_granted(self) -> None:
        """Tell of one grant."""

    def segment_revoked(self) -> None:
        """Tell of one revocation."""

    def handover_finished(self, seconds: float, reason: e.ReleaseReason) -> None:
        """Tell how long a segment took from its revocation to its next grant, and how it was released."""

    def segments_drained(self, count: int, waited_seconds: float) -> None:
        """Tell of newly drained segments, and how long ago the last acknowledgement of one of them came in."""

    def subscription_seek_completed(self) -> None:
        """Tell of one seek."""

    def segment_weight_changed(self, change: WeightChange) -> None:
        """Tell that the weight of a segment changed, and how."""

    def drain_poll_completed(self, outcome: PollOutcome) -> None:
        """Tell how one drain poll ended."""

    def blocked_segments_changed(self, change: int) -> None:
        """Tell by how many the number of blocked segments changed, over all subscriptions."""


class NoopObserver:
    """An observer that does nothing."""

    def consumer_registered(self) -> None:
        """See `CoordinatorObserver`."""

    def consumer_reconnected(self) -> None:
        """See `CoordinatorObserver`."""

    def consumer_disconnected(self) -> None:
        """See `CoordinatorObserver`."""

    def consumer_removed(self, reason: e.LeaveReason) -> None:
        """See `CoordinatorObserver`."""

    def segment_granted(self) -> None:
        """See `CoordinatorObserver`."""

    def segment_revoked(self) -> None:
        """See `CoordinatorObserver`."""

    def handover_finished(self, seconds: float, reason: e.ReleaseReason) -> None:
        """See `CoordinatorObserver`."""

    def segments_drained(self, count: int, waited_seconds: float) -> None:
        """See `CoordinatorObserver`."""

    def subscription_seek_completed(self) -> None:
        """See `CoordinatorObserver`."""

    def segment_weight_changed(self, change: WeightChange) -> None:
        """See `CoordinatorObserver`."""

    def drain_poll_completed(self, outcome: PollOutcome) -> None:
        """See `CoordinatorObserver`."""

    def blocked_segments_changed(self, change: int) -> None:
        """See `CoordinatorObserver`."""
