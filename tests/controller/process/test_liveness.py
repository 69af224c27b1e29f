"""Messages to systemd."""

import socket
import subprocess
import sys
import threading

import pytest

from controller.process.liveness import LoopWatchdog, SystemdNotifier


@pytest.fixture
def manager(tmp_path):
    """systemd's end of the socket; reads do not block."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.setblocking(False)
        yield listening


@pytest.fixture
def notifier(manager):
    return SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})


def received(listening):
    messages = []
    while True:
        try:
            messages.append(listening.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_the_messages_of_a_start_and_a_stop(manager, notifier):
    for text in ("not_ready: waiting", "not_ready: waiting", "ready: leads 2"):
        notifier.status(text)
        notifier.watchdog()
    notifier.ready()
    notifier.watchdog()
    notifier.stopping()
    notifier.status("ready")
    notifier.watchdog()  # The unit's stop time-out applies, however long the loop still runs.

    assert received(manager) == [
        "STATUS=not_ready: waiting",
        *(keep_alive := ["EXTEND_TIMEOUT_USEC=300000000", "WATCHDOG=1"]),
        *keep_alive,
        "STATUS=ready: leads 2",
        *keep_alive,
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_a_line_break_in_a_status_does_not_start_an_assignment(manager, notifier):
    notifier.status("one\nMAINPID=1\r\ntwo")

    assert received(manager) == ["STATUS=one MAINPID=1 two"]


def test_an_abstract_socket_address_is_supported():
    """systemd writes the leading NUL as @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel assigns an abstract address
        listening.setblocking(False)
        address = listening.getsockname()
        SystemdNotifier({"NOTIFY_SOCKET": "@" + address[1:].decode()}).ready()

        assert received(listening) == ["READY=1"]


def test_a_message_that_cannot_be_sent_is_dropped(tmp_path, manager, notifier):
    """The socket is missing, or its buffer is full. The caller never waits."""
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "missing")}).ready()
    for _ in range(2000):
        notifier.watchdog()

    assert 0 < len(received(manager)) < 4000


STOPPED = """
import asyncio, os, time
from controller.process.liveness import LoopWatchdog
async def main():
    with LoopWatchdog(limit=3, look_seconds=0.1) as watchdog:
        for _ in range(10):
            await asyncio.sleep(0.05)
            watchdog.tick()
        print("ticked for longer than the limit", flush=True)
        HALT
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("halt", "code", "said"), [("time.sleep(60)", 1, "done nothing for 0.3 s"), ("os.abort()", -6, "error: Aborted")]
)
def test_a_process_whose_loop_has_stopped_ends_and_says_where(halt: str, code: int, said: str) -> None:
    script = STOPPED.replace("HALT", halt)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (code, "ticked for longer than the limit\n") == (done.returncode, done.stdout)
    assert said in done.stderr
    assert "in main" in done.stderr


def test_no_process_ends_after_it_has_left_the_watch() -> None:
    ended = threading.Event()
    with LoopWatchdog(lambda _: ended.set(), limit=2, look_seconds=0.05):
        pass
    assert not ended.wait(0.3)
