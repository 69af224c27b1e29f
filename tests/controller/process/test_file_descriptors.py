"""A process that has few file descriptors left says so."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controller.process.file_descriptors import FileDescriptorWatch, file_descriptors
from tests.support.waiting import until


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
