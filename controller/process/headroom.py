"""Watches what a daemon may run out of: file descriptors, and the space of the file systems that it writes to.

Without descriptors, a daemon cannot connect to the broker or ZooKeeper, read or write a ledger in a folder, or accept
a probe.
"""

import asyncio
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import structlog

from controller.settings.load import Settings
from headgate.process.background import BackgroundService
from metrics import events
from metrics.health import DESCRIPTORS_FRACTION
from metrics.label_values import FileSystemUse

INTERVAL_SECONDS: Final = 5.0
MEASUREMENT_SECONDS: Final = 30.0
"""Between two measurements of file systems."""
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


def measured_folders(settings: Settings) -> dict[FileSystemUse, Path]:
    """Return the folders whose file systems may fill up. A bucket has none, and only a spawned Spark has one here."""
    found: dict[FileSystemUse, Path] = {}
    ledger = urlsplit(settings.ledger.url)
    if ledger.scheme == "file":
        found["ledger"] = Path(unquote(ledger.path))
    if settings.drain.spawn:
        found["drain"] = Path(settings.drain.folder)
    return found


class FileSystemWatch(BackgroundService):
    """Measures the file systems that the daemon writes to: of a ledger in a folder, and of the folder of Spark.

    A file system that does not answer delays only these measurements: each runs in a thread.
    """

    task_name = "file-systems"

    def __init__(self, folders: Mapping[FileSystemUse, Path], observer: events.Observer) -> None:
        self._folders = folders
        self._observer = observer
        self._failing: set[FileSystemUse] = set()

    async def _run(self) -> None:
        while True:
            for use, folder in self._folders.items():
                await self._measure(use, folder)
            await asyncio.sleep(MEASUREMENT_SECONDS)

    async def _measure(self, use: FileSystemUse, folder: Path) -> None:
        try:
            usage = await asyncio.to_thread(disk_usage, folder)
        except OSError as error:
            if use not in self._failing:
                log.warning("file_system.unmeasured", use=use, folder=str(folder), error=str(error))
            self._failing.add(use)
            return
        self._failing.discard(use)
        self._observer.observe(
            events.FileSystemMeasured(use=use, free_bytes=usage.free_bytes, size_bytes=usage.size_bytes)
        )


class DiskUsage(NamedTuple):
    size_bytes: int
    free_bytes: int
    lacks_inodes: bool
    """Whether fewer inodes are free than space, so that they limit what can be written."""


def disk_usage(folder: Path) -> DiskUsage:
    """Return the space of the folder's file system, or of the closest existing folder above it.

    Both folders are created when they are needed. A chunk is a file: where a smaller share of the inodes is free than
    of the bytes, as with many small chunks on ext4, only that share of the bytes counts as free.
    """
    found = os.statvfs(next((each for each in (folder, *folder.parents) if each.exists()), folder))
    size_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    of_inodes = size_bytes * found.f_favail // found.f_files if found.f_files else free_bytes
    return DiskUsage(size_bytes, min(free_bytes, of_inodes), of_inodes < free_bytes)
