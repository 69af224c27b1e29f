"""A process whose loop has stopped ends; one whose loop ticks, or that has left the watch, does not."""

import subprocess
import sys
import threading

from controller.process.loop_watchdog import LoopWatchdog

STOPPED = """
import asyncio, threading
from controller.process.loop_watchdog import LoopWatchdog
async def main():
    with LoopWatchdog(limit=3, look_seconds=0.1) as watchdog:
        for _ in range(10):
            await asyncio.sleep(0.05)
            watchdog.tick()
        print("ticked for longer than the limit", flush=True)
        threading.Event().wait()
asyncio.run(main())
"""


def test_a_process_whose_loop_has_stopped_ends_and_says_where() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=60, check=False)
    assert (1, "ticked for longer than the limit\n") == (done.returncode, done.stdout)
    assert "the event loop has done nothing for 0.3 s" in done.stderr
    assert "in main" in done.stderr


def test_no_process_ends_after_it_has_left_the_watch() -> None:
    ended = threading.Event()
    with LoopWatchdog(lambda _: ended.set(), limit=2, look_seconds=0.05):
        pass
    assert not ended.wait(0.3)
