"""Watches how many file descriptors this process has left.

Without any, a daemon cannot connect to the broker or ZooKeeper, read or write a ledger in a folder, or accept a probe.
"""

import asyncio
import resource
from pathlib import Path
from typing import Final

import structlog

from headgate.process.background import BackgroundService
from metrics.health import DESCRIPTORS_FRACTION

INTERVAL_SECONDS: Final = 5.0
FOLDER: Final = Path("/dev/fd")

log = structlog.get_logger(__name__)


def file_descriptors() -> tuple[int, int]:
    """Return how many are open, and how many may be; a limit that is not positive is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return sum(1 for _ in FOLDER.iterdir()) - 1, limit  # Listing takes one, too.
    except OSError:
        return limit, limit


class FileDescriptorWatch(BackgroundService):
    """Logs once when they run short, and again after they have not."""

    task_name = "file-descriptors"

    async def _run(self) -> None:
        short = False
        while True:
            opened, limit = file_descriptors()
            before, short = short, 0 < limit * DESCRIPTORS_FRACTION <= opened
            if short and not before:
                log.warning("descriptors.short", open=opened, limit=limit, advice="raise LimitNOFILE")
            await asyncio.sleep(INTERVAL_SECONDS)
