"""One of two processes that contend for a lock with nothing but kazoo, as a peer of a daemon.

``python -m bench.harness.kazoo_contender HOSTS PATH NAME SESSION_SECONDS FILE`` acquires kazoo's `Lock`. While it holds
the lock it appends a line with the time to FILE every two milliseconds, in place of the work of a leader: no
ledger, no clients, no fencing. SIGTERM releases the lock. Times are nanoseconds of the machine's monotonic clock.
"""

import os
import signal
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

BEAT_SECONDS = 0.002
CONNECT_SECONDS = 60.0


def contend(hosts: str, path: str, name: str, session_seconds: float, file: str) -> None:
    """Hold the lock whenever possible, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    client = KazooClient(hosts, timeout=session_seconds, handler=SequentialThreadingHandler())
    client.start(timeout=CONNECT_SECONDS)
    lock = client.Lock(path, name)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while not stop.is_set():
        if not lock.acquire(timeout=CONNECT_SECONDS):
            continue
        while not stop.is_set():
            os.write(handle, b"%d\n" % time.monotonic_ns())
            time.sleep(BEAT_SECONDS)
    if lock.is_acquired:
        lock.release()
    client.stop()
    client.close()


if __name__ == "__main__":
    contend(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5])
