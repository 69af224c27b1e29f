"""A log that cannot be written ends nothing, and what it lost is counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.log.lossy_output import LossyFile, take_lost_lines

PROGRAM = """
import asyncio, logging, sys
import structlog
from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from headgate.log.lossy_output import lossy_standard_output, take_lost_lines

async def main():
    for number in range(3):
        structlog.get_logger().error("shard.failed", number=number, exc_info=ValueError("x"))
        logging.getLogger("library").error("text")
        print("status", file=sys.stderr, flush=True)
        print("result", flush=True)

configure_logging(LogSettings(format=sys.argv[1]), sys.stderr)
with lossy_standard_output():
    asyncio.run(main())
open(sys.argv[2], "w").write(str(take_lost_lines()))
"""


@pytest.mark.parametrize("log_format", ["json"])
def test_a_program_outlives_a_full_disk_under_its_log_and_ends_with_0(tmp_path: Path, log_format: str) -> None:
    """Logging raised, and ended a daemon; unwritten text in a buffer ends Python with 120."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", PROGRAM, log_format, str(tmp_path / "lost")]
        done = subprocess.run(command, stdout=full, stderr=full, check=False, timeout=60)

    assert 0 == done.returncode
    assert int((tmp_path / "lost").read_text()) >= 12


def test_lines_are_whole_again_once_the_log_accepts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_lost_lines()
    path = tmp_path / "log"
    write = os.write
    with path.open("wb") as target:
        log = LossyFile(target.fileno())
        log.write(b'{"line": 1}\n')

        def until_full(descriptor: int, data: bytes) -> int:
            if len(data) < 12:
                raise OSError("No space left on device")
            return write(descriptor, data[:4])

        with monkeypatch.context() as full:
            full.setattr(os, "write", until_full)
            assert 12 == log.write(b'{"line": 2}\n')
        log.write(b'{"line": 3}\n')

    first, cut, last = path.read_text().splitlines()
    assert [1, 3] == [json.loads(line)["line"] for line in (first, last)]
    assert '{"li' == cut
    assert (1, 0) == (take_lost_lines(), take_lost_lines())
