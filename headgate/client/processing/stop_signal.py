"""Let SIGTERM end the runs of a process gracefully.

This happens only where nothing else handles SIGTERM: in the main thread, as long as the signal has its default action,
which would end the process at once. A program or framework with a handler of its own calls `Consumer.stop` there.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headgate.client.handlers import Handlers

_stops: Final[Handlers[Callable[[], object]]] = Handlers()


@contextmanager
def stopped_by_sigterm(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` when the process receives SIGTERM during the block. It is called between any two instructions."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _on_sigterm):
        yield
        return
    remove = _stops.add(stop)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        remove()
        if not list(_stops) and signal.getsignal(signal.SIGTERM) is _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_sigterm(_signal: int, _frame: object) -> None:
    for stop in _stops:
        stop()
