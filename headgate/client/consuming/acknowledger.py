"""Send one consumer's acknowledgements to the leader, and keep each until it is stored.

* They are collected for a short interval. One request is in flight at a time, and what is acknowledged
  meanwhile goes with the next one.
* What is refused is sent again after a pause, while the segment is held: a right that was withdrawn may be
  given back, and a QUEUE at its limit of ranges accepts more once gaps are filled. What is refused because
  the segment has moved ends with the segment.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from headgate import errors
from headgate.backoff import Backoff, BackoffSchedule
from headgate.client.decisions.held_segments import HeldKey
from headgate.client.decisions.unstored_acknowledgements import (
    AcknowledgementBatch,
    ByHolding,
    Single,
    UnstoredAcknowledgements,
    by_segment,
    offsets_text,
)
from headgate.log.event_log import EventLogger
from headgate.model.entries import SubscriptionType
from headgate.protocol.replies import Acknowledged, Redelivery
from headgate.protocol.request_fields import MAX_BATCH_ACKNOWLEDGEMENTS
from headgate.protocol.requests import NegativeAcknowledgement, ParkedRecord, ResumedKey

INTERVAL_SECONDS: Final = 0.1
"""For how long acknowledgements are collected before they are sent."""
FLUSH_THRESHOLD: Final = 1000
"""This many acknowledgements are sent without waiting for the interval."""
MAX_PENDING_RANGES: Final = 100_000
"""Most ranges of acknowledged offsets that are collected; beyond it `wait_for_capacity` waits."""
RETRY_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=5.0)
"""Before what was refused is sent again."""

Send = Callable[[AcknowledgementBatch, int], Awaitable[Acknowledged]]
"""(batch, its number); see `headgate.client.consuming.consumer_context`."""
OnNegative = Callable[[HeldKey, list[Redelivery], bool], None]
"""(holding, what was stored of it as failed, whether the leader refuses more of it at present)."""


class Acknowledger:
    def __init__(
        self,
        send: Send,
        kind: SubscriptionType,
        *,
        draw: Callable[[], float],
        log: EventLogger,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        """``draw`` returns random numbers from 0 to 1, for pauses."""
        self.on_negative: OnNegative = lambda *_: None
        self._send = send
        self._log = log
        self._interval_seconds = interval_seconds
        self.unstored = UnstoredAcknowledgements(kind)
        """What it has collected, and what came of it."""
        self._retries = BackoffSchedule(RETRY_BACKOFF, draw)
        self._problem: str | None = None
        """Why the newest acknowledgements were not stored; None: they were, or there is no reply yet."""
        self._batches = 0
        self._collected = 0
        """Acknowledgements since everything was sent, and the ranges that were refused then."""
        self._due = asyncio.Event()
        self._hurried = asyncio.Event()
        """Ends a pause."""
        self._progress = asyncio.Event()
        """It is set at every outcome."""
        self._interval_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def end(self, key: HeldKey) -> None:
        """End a holding: it has moved, and what is not stored of it is late."""
        if lost := self.unstored.end(key):
            self._log.info("acknowledgements.late", segment=key[0], generation=key[1], count=lost)
        self._progress.set()

    def give_up(self, key: HeldKey) -> None:
        """End a holding whose time is up. The next `flush` reports what is not stored of it."""
        if lost := self.unstored.give_up(key):
            self._log.warning("acknowledgements.not_stored", offsets=offsets_text(lost), reason=self._reason)
        self._progress.set()

    def acknowledge(self, key: HeldKey, first_offset: int, end_offset: int, checkpoint: str | None = None) -> None:
        """Acknowledge the offsets below ``end_offset``: QUEUE from ``first_offset`` on, STREAM all.

        ``checkpoint``: where the next holder of an external segment continues.
        """
        self.unstored.add(key, first_offset, end_offset)
        if checkpoint is not None:
            self.unstored.add_checkpoint(key, checkpoint)
        self._count()

    def acknowledge_single(self, offset: int, single: Single) -> None:
        """Acknowledge one record of a QUEUE that was delivered before, or acknowledge it negatively."""
        self.unstored.add_single(offset, single)
        self._count()

    def resume(self, resumed: ResumedKey) -> None:
        """Acknowledge the parked records of a key up to a number."""
        self.unstored.add_resumed(resumed)
        self._count()

    def _count(self) -> None:
        self._collected += 1
        if self._collected >= FLUSH_THRESHOLD:
            self._due.set()
        elif self._interval_timer is None and not self._due.is_set():
            self._interval_timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._interval_over)

    async def send(self) -> None:
        """Send what is collected without waiting for the interval; return once all of it is stored, or refused."""
        self._due.set()
        last = self._batches + 1 + self.unstored.ranges // MAX_BATCH_ACKNOWLEDGEMENTS
        while self.unstored.has_due and self._batches <= last and not self._stopped:
            await self._wait_for_progress()

    async def wait_for_capacity(self) -> None:
        """Wait while too many ranges are collected, unless the consumer ends. STREAM has one for each segment."""
        while self._collected > MAX_PENDING_RANGES and self.unstored.ranges > MAX_PENDING_RANGES and not self._stopped:
            await self._wait_for_progress()

    async def flush(self, timeout_seconds: float, keys: list[HeldKey] | None = None) -> None:
        """Wait until what is acknowledged now is stored, of ``keys`` or of every holding.

        Of every holding: also until the leader has said whether what is in flight of an ended one was late.

        Raises AcknowledgementsNotStoredError: something is not, after ``timeout_seconds``, or was given up before.
        """
        remaining = await self._stored_in_time(self.unstored.unstored(keys), timeout_seconds, of_all=keys is None)
        lost = dict(by_segment(remaining))
        if keys is None:
            for segment, ranges in self.unstored.take_given_up().items():
                lost[segment] = (*ranges, *lost.get(segment, ()))
        if lost:
            text = f"acknowledgements are not stored ({offsets_text(lost)}): {self._reason}"
            text += f" (waited {timeout_seconds:g} s); their records are delivered again"
            raise errors.AcknowledgementsNotStoredError(text, dict(lost))

    async def _stored_in_time(self, acknowledged: ByHolding, timeout_seconds: float, *, of_all: bool) -> ByHolding:
        """Wait until ``acknowledged`` is stored; return what is not after ``timeout_seconds``."""
        if acknowledged:
            self._retries.reset()
            self._retry()
            self._hurried.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while acknowledged := self.unstored.still_unstored(acknowledged):
                    await self._wait_for_progress()
                while of_all and self.unstored.may_be_late and not self._stopped:
                    await self._wait_for_progress()
        return acknowledged

    @property
    def _reason(self) -> str:
        return self._problem or "the leader has not replied"

    def stop(self) -> None:
        """Let nothing wait for capacity any more: the consumer has failed, or is closed."""
        self._stopped = True
        self._progress.set()

    async def run(self) -> None:
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                while (batch := self.unstored.next_batch()) is not None:
                    self._batches += 1
                    try:
                        reply = await self._send(batch, self._batches)
                    except (errors.FencedError, errors.OtherHistoryError) as error:
                        self._problem = str(error)
                        raise
                    except (errors.NoLeaderError, errors.RequestRejectedError) as error:
                        await self._failed(str(error))
                    else:
                        self._replied(batch, reply)
                self._collected = self.unstored.ranges
                self._progress.set()
        finally:
            for timer in (self._interval_timer, self._retry_timer):
                if timer is not None:
                    timer.cancel()

    def _replied(self, batch: AcknowledgementBatch, reply: Acknowledged) -> None:
        self.unstored.replied(dict(reply.rejected), dict(reply.negative_rejected))
        named: list[NegativeAcknowledgement | ParkedRecord] = [*batch.negative, *batch.parked]
        due: dict[HeldKey, list[Redelivery]] = {(each.segment, each.generation): [] for each in named}
        for index, redelivery in reply.redeliveries:
            due[batch.negative[index].segment, batch.negative[index].generation].append(redelivery)
        for key, redeliveries in due.items():
            self.on_negative(key, redeliveries, self.unstored.is_full(key))
        rejected = [*reply.rejected, *reply.negative_rejected]
        self._problem = rejected[0][1] if rejected else None
        if rejected:
            self._log.info("acknowledgements.rejected", count=len(rejected), reason=self._problem)
            if self.unstored.has_refused and self._retry_timer is None:
                pause = self._retries.next_seconds()
                self._retry_timer = asyncio.get_running_loop().call_later(pause, self._retry)
        else:
            self._retries.reset()
        self._progress.set()

    async def _failed(self, reason: str) -> None:
        """Pause after a request without a reply, or a refusal of the whole request."""
        self.unstored.failed()
        if self._problem is None:
            self._log.warning("acknowledgements.refused", reason=reason)
        self._problem = reason
        self._progress.set()
        self._hurried.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._retries.next_seconds()):
                await self._hurried.wait()
        self.unstored.retry()

    def _interval_over(self) -> None:
        self._interval_timer = None
        self._due.set()

    def _retry(self) -> None:
        """Send what is collected, and what was refused, at once."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self.unstored.retry()
        self._due.set()

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()
