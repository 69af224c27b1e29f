"""Consumer programs that use `Consumer.run`: handlers of random durations, which sometimes fail, for keys in parallel.

The handler notes what it begins and what it has handled, so the checker sees an acknowledgement of anything else.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from headgate import BatchPolicy, ConsumedRecord, Consumer, HandlerFailedError, LookAhead, RetryPolicy
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.plan import Plan

SHARE: Final = 0.3
"""Of the consumer programs, from `FIRST_SEED` on."""
FIRST_SEED: Final = 60
"""Tests name seeds before, and what they find."""
SLOW_SECONDS: Final = 8.0
"""Beyond the time that some worlds give a revoked segment."""
STOP_SECONDS: Final = 5.0


class FlakyError(Exception):
    """What a handler raises."""


RETRIES: Final = RetryPolicy(
    attempts=1000, first_pause_seconds=0.05, longest_pause_seconds=2.0, exceptions=(FlakyError,)
)


def uses_run(plan: Plan, consumer: str) -> bool:
    return plan.seed >= FIRST_SEED and plan.rng(f"run of {consumer}").random() < SHARE


class Handlers:
    """The handler of one run, as the checker sees it."""

    def __init__(
        self, rng: random.Random, begun: Callable[[ConsumedRecord], None], done: Callable[[ConsumedRecord], None]
    ) -> None:
        """``begun`` is called for each record at each attempt, ``done`` when it is handled."""
        self._rng = rng
        self._begun = begun
        self._done = done
        self._busy: set[bytes] = set()
        self.concurrency = rng.choice([1, 2, 8])
        self._running = 0

    async def run(self, consumer: Consumer) -> None:
        """Run until cancelled, or until the consumer ends."""
        rng = self._rng
        batch = BatchPolicy(max_records=rng.randint(1, 5), max_wait_seconds=rng.uniform(0, 1))
        batches = rng.random() < 0.3
        try:
            await consumer.run(
                self._handle if batches else self._handle_one,
                concurrency=self.concurrency,
                retry=RETRIES,
                batch=batch if batches else None,
                look_ahead=LookAhead(max_records=rng.choice([1, 5, 1000])),
                stop_seconds=STOP_SECONDS,
            )
        except HandlerFailedError as error:
            raise error.__cause__ or error from None

    async def _handle_one(self, record: ConsumedRecord) -> None:
        await self._handle([record])

    async def _handle(self, records: list[ConsumedRecord]) -> None:
        keys, rng = {record.key for record in records}, self._rng
        if keys & self._busy or self._running >= self.concurrency:
            raise BrokenPromiseError(f"{keys} begins beside {self._busy}, with {self._running} calls")
        self._busy |= keys
        self._running += 1
        try:
            for record in records:
                self._begun(record)
            luck = rng.random()
            await asyncio.sleep(rng.uniform(0, SLOW_SECONDS if luck < 0.02 else 0.2 if luck < 0.5 else 0))
            if rng.random() < 0.05:
                raise FlakyError
            for record in records:
                self._done(record)
        finally:
            self._busy -= keys
            self._running -= 1
