"""A transfer of a shard that is in progress."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from metrics.label_values import TransferReason


@dataclass(frozen=True, slots=True)
class Transfer:
    """``done``: None if the lock was passed on, otherwise why it was not."""

    successor: str
    reason: TransferReason
    timeout_seconds: float
    done: asyncio.Future[str | None]
