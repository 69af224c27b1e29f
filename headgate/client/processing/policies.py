"""Describe how `Consumer.run` handles records: retries, batches, and how far it reads ahead. Pure.

Values that are out of range raise ConfigError.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.backoff import Backoff
from headgate.errors import ConfigError
from headgate.settings.arguments import require_choice, require_count, require_seconds


class LastAction(StrEnum):
    """What happens to a record whose handler has failed for the last time."""

    STOP = "stop"
    """`Consumer.run` raises HandlerFailedError. The record stays unacknowledged."""
    SKIP = "skip"
    """The record is logged, counted and acknowledged, as if it was handled."""
    REDELIVER = "redeliver"
    """QUEUE: the record is acknowledged negatively, so it is delivered again, or goes to the dead-letter topic."""

    PARK = "park"
    """STREAM: the record's key is parked: its records go to the dead-letter topic, and other keys continue."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a handler that raised is called again, and what happens after its last attempt.

    While a record waits for its retry, only records of the same key wait with it. A pause doubles with each
    failure; up to half of it is random.
    """

    attempts: int = 5
    """Calls of the handler for one record, or for one batch. 1: no retry."""
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 10.0
    exceptions: tuple[type[Exception], ...] = (Exception,)
    """The exceptions after which the handler is called again. Others lead to the last action at once."""
    then: LastAction | str = LastAction.STOP
    """The last action; its name is accepted too."""

    def __post_init__(self) -> None:
        require_count("RetryPolicy: attempts", self.attempts)
        first = require_seconds("RetryPolicy: first_pause_seconds", self.first_pause_seconds)
        require_seconds("RetryPolicy: longest_pause_seconds", self.longest_pause_seconds, at_least=first)
        require_choice("RetryPolicy: then", self.then, [each.value for each in LastAction])
        try:
            isinstance(None, self.exceptions)
        except TypeError:
            raise ConfigError(f"RetryPolicy: exceptions={self.exceptions!r}: use a tuple of exceptions") from None

    def after(self, failures: int, error: BaseException, draw: float) -> float | LastAction:
        """Return the pause before the next attempt in seconds, or the last action.

        ``failures`` includes this one; ``draw`` is a random number from 0 to 1.
        """
        if failures >= self.attempts or not isinstance(error, self.exceptions):
            return LastAction(self.then)
        pauses = Backoff(first_seconds=self.first_pause_seconds, longest_seconds=self.longest_pause_seconds)
        return pauses.seconds(failures - 1, draw)


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """How records are collected for one call of the handler."""

    max_records: int = 100
    max_wait_seconds: float = 1.0
    """How long a record that could be handled waits for others."""

    def __post_init__(self) -> None:
        require_count("BatchPolicy: max_records", self.max_records)
        require_seconds("BatchPolicy: max_wait_seconds", self.max_wait_seconds, at_least=0.0)


SINGLE: Final = BatchPolicy(max_records=1, max_wait_seconds=0.0)
"""Without batches: each record alone, at once."""


@dataclass(frozen=True, kw_only=True)
class LookAhead:
    """How far records are read beyond those that are not handled, in equal shares for the held segments.

    A segment that uses its share gets no further records until it uses less than half; the others continue. Up to 1 000
    records that are read already come in addition.
    """

    max_records: int = 10_000
    """Records beyond the low-water marks, handled or not: a crash can repeat as many."""
    max_bytes: int = 64 << 20
    """Bytes of records that are not handled."""

    def __post_init__(self) -> None:
        require_count("LookAhead: max_records", self.max_records)
        require_count("LookAhead: max_bytes", self.max_bytes)
