import asyncio
import os
import signal
import subprocess
import sys

from headgate.process.processor_time import processor_seconds
from tests.support.waiting import until

PROGRAM = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


def test_the_time_of_children_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True) as process:
        try:
            asyncio.run(until(lambda: processor_seconds(process.pid) > 1))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert processor_seconds(process.pid) == 0
