"""Processor time of a process with its children, and the memory that the allocator keeps."""

import asyncio
import os
import signal
import subprocess
import sys

from headgate.process.resources import processor_seconds, wants_processor
from tests.support.waiting import until

PROGRAM = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


def test_the_time_of_children_counts_and_that_they_want_more() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True) as process:
        try:
            asyncio.run(until(lambda: processor_seconds(process.pid) > 1))
            assert wants_processor(process.pid)
            os.killpg(process.pid, signal.SIGSTOP)
            asyncio.run(until(lambda: not wants_processor(process.pid)))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert processor_seconds(process.pid) == 0


FAULTS = """
from resource import RUSAGE_SELF, getrusage
from headgate.process.resources import keep_freed_memory
{call}
bytearray(8_000_000)  # 2 000 pages
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(8_000_000)
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def test_the_pages_of_a_freed_buffer_serve_the_next_one() -> None:
    programs = [FAULTS.format(call=call) for call in ("", "keep_freed_memory()")]
    plain, kept = (int(subprocess.check_output([sys.executable, "-c", program])) for program in programs)
    assert kept < 1_000 < plain
