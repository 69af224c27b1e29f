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
