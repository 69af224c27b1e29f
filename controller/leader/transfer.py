"""A transfer of a shard that is in progress: until the successor's term is in the ledger, or until it has failed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.leadership.policy.transitions import Event
from metrics.label_values import TransferReason


@dataclass(slots=True, eq=False)
class Transfer:
    """``done``: None once the successor's term is in the ledger, otherwise why the transfer has failed."""

    shard: int
    successor: str
    reason: TransferReason
    timeout_seconds: float
    """Longest wait until the successor is ready, and then until its term has begun."""
    post: Callable[[Event], None]
    done: asyncio.Future[str | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stopped_at: float | None = None
    """When the leader stopped accepting requests for a successor that was ready, by the loop's clock; None: not yet."""
    _waits: list[asyncio.TimerHandle | asyncio.Task[None]] = field(default_factory=list)

    def wait(self, following: asyncio.Task[None] | None = None) -> None:
        """Limit the wait for the successor. ``following`` looks for its term, and ends with the wait."""
        loop = asyncio.get_running_loop()
        self._waits.append(loop.call_later(self.timeout_seconds, self.post, Event.TRANSFER_ABANDONED))
        if following is not None:
            self._waits.append(following)

    def end_wait(self) -> None:
        while self._waits:
            self._waits.pop().cancel()

    def problem(self, event: Event, leader: str) -> str | None:
        """Return why the transfer has failed, which ended with ``event``. ``leader`` began the newest known term."""
        successor, seconds = f"daemon {self.successor!r}", f"{self.timeout_seconds:g} s"
        if self.stopped_at is None:
            if event is Event.SUCCESSOR_LEFT:
                return f"{successor} has ended, or lost its session in ZooKeeper"
            if event is Event.TRANSFER_ABANDONED:
                not_ready = f"{successor} was not ready to lead shard {self.shard} within {seconds}"
                return f"{not_ready}: see transfer.not_prepared in its log"
            return f"the term ended: {event.value.replace('_', ' ')}"
        if event is Event.TERM_FOLLOWED and leader == self.successor:
            return None
        why = {
            Event.TERM_FOLLOWED: f": daemon {leader!r} has begun one",
            Event.TRANSFER_ABANDONED: f" within {seconds}",
            Event.LOCK_ACQUIRED: ", and has given the lock up",
        }.get(event, f" before this one stopped waiting ({event.value.replace('_', ' ')})")
        return (
            f"{successor} was ready, got the lock of shard {self.shard} and began no term{why}: "
            "see ledger.unreachable, term.outcome_unknown or ledger.unreadable in its log"
        )
