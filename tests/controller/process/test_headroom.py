"""The space of the file systems that a daemon writes to."""

import asyncio
import os
import resource
from collections import namedtuple
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from controller.process import headroom
from controller.process.headroom import FileDescriptorWatch, FileSystemWatch, file_descriptors
from metrics.instruments import Instruments
from tests.support.waiting import until

Usage = namedtuple("Usage", "f_frsize f_blocks f_bavail f_files f_favail")  # noqa: PYI024 - as os.statvfs


async def observed(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, usage) -> CollectorRegistry:
    """Return the metrics after ``count`` measurements."""
    measured = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def statvfs(path: Path):
        loop.call_soon_threadsafe(measured.release)
        return usage(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(headroom, "MEASUREMENT_SECONDS", 0.001)
    registry = CollectorRegistry()
    async with FileSystemWatch({"ledger": folder}, Instruments(registry)):
        for _ in range(count + 1):  # the metrics of one are set before the next one begins
            await measured.acquire()
    return registry


@pytest.mark.parametrize(("files", "free_files", "free"), [(0, 0, 200), (50, 10, 200), (50, 9, 180), (50, 0, 0)])
async def test_a_folder_that_does_not_exist_yet_has_the_space_and_inodes_of_the_one_above(
    files: int, free_files: int, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = {tmp_path: Usage(10, 100, 20, files, free_files)}
    registry = await observed(tmp_path / "not" / "yet", 1, monkeypatch, usage.__getitem__)

    assert registry.get_sample_value("headgate_file_system_free_bytes", {"use": "ledger"}) == free
    assert registry.get_sample_value("headgate_file_system_size_bytes", {"use": "ledger"}) == 1000


async def test_a_folder_that_cannot_be_measured_has_no_series_and_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Usage:
        raise PermissionError(13, "Permission denied", str(path))

    with structlog.testing.capture_logs() as logged:
        registry = await observed(tmp_path, 3, monkeypatch, fail)

    assert registry.get_sample_value("headgate_file_system_free_bytes", {"use": "ledger"}) is None
    assert [(line["event"], line["use"]) for line in logged] == [("file_system.unmeasured", "ledger")]


@pytest.fixture
def _small_limit() -> Iterator[None]:
    """Allow forty more than are open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as gaps:  # The limit is on the number of a descriptor.
        highest = max(int(each.name) for each in Path("/dev/fd").iterdir())
        while (filled := os.open(os.devnull, os.O_RDONLY)) < highest:
            gaps.callback(os.close, filled)
        gaps.callback(os.close, filled)
        resource.setrlimit(resource.RLIMIT_NOFILE, (filled + 41, before[1]))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_small_limit")
async def test_a_process_that_opens_all_its_descriptors_is_noticed() -> None:
    opened, limit = file_descriptors()
    assert limit - 50 < opened < limit - 30, "those that others left open"
    with capture_logs() as logs, ExitStack() as files:
        with suppress(OSError):
            while True:
                files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert file_descriptors() == (limit, limit), "without one more they cannot be counted"
        async with FileDescriptorWatch():
            await until(lambda: logs)

    assert [("descriptors.short", "warning", limit)] == [(x["event"], x["log_level"], x["open"]) for x in logs]
