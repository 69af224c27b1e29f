"""An event loop whose clock jumps to the next timer instead of waiting for it.

There is no external input: a loop with nothing scheduled can never continue, and one whose time does not pass never
ends, so both raise instead of hanging. Nothing is waited for, so a turn of the loop is shorter than asyncio's: no
selector, timers in a heap of tuples, and handles that are lists. Timers of one time run in the order in which they were
set.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any


class DeadlockError(AssertionError):
    """Every task waits, and no timer is scheduled."""


class EndlessTurnsError(AssertionError):
    """Callbacks call each other without an end, and virtual time hardly passes."""


class UnclosedGeneratorError(Exception):
    """An asynchronous generator was left before its end, and not closed."""


_MOST_TURNS = 200_000
"""In one virtual second. The busiest second of 360 worlds has 4 262."""


class _Handle(list[Any]):
    """Context, callback and arguments; empty when cancelled. No function of Python runs when one is made.

    A run makes tens of thousands, and asyncio's own ask whether their loop is debugged.
    """

    __slots__ = ("_when",)
    __eq__, __hash__ = object.__eq__, object.__hash__
    _when: float
    """Of a timer: when it is due."""

    def cancel(self) -> None:
        """Cancel it. A timer stays in the heap until its time has come."""
        self.clear()

    def cancelled(self) -> bool:
        return not self

    def when(self) -> float:
        return self._when


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in virtual time."""

    _ready: Any  # handles that asyncio runs in this turn or the next one
    _stopping: bool
    get_debug = bool  # without a function of Python: each future asks

    def __init__(self, start: float = 0.0) -> None:
        """``start``: the time of the clock at first."""
        super().__init__()
        self._virtual_now = start
        self._timers: list[tuple[float, int, _Handle]] = []
        self._unclosed = ""
        self._timers_set = 0

    def time(self) -> float:
        return self._virtual_now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """Call ``callback`` in the next turn."""
        handle = _Handle((copy_context() if context is None else context, callback, args))
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # asyncio's runner calls it at Ctrl-C, from this thread

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Call ``callback`` after ``delay`` seconds."""
        return self.call_at(self._virtual_now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """Call ``callback`` when the clock has reached ``when``."""
        handle = _Handle((copy_context() if context is None else context, callback, args))
        handle._when = when
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def run_in_executor(self, _executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run ``function`` immediately: a thread would finish after real time, which varies."""
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting task raises it
            done.set_exception(error)
        return done

    def _asyncgen_finalizer_hook(self, generator: Any) -> None:
        """Fail the run: asyncio would close it in a turn that depends on the garbage collector."""
        self._unclosed = generator.__qualname__
        self.stop()

    def _run_once(self) -> None:
        """Run turns until the loop stops: in each what is ready, or if nothing is, what the next timer makes ready."""
        ready, timers, now = self._ready, self._timers, self._virtual_now
        second, turns = 0.0, 0
        while not self._stopping:
            turns += 1
            if turns > _MOST_TURNS:
                if now < second + 1:
                    raise EndlessTurnsError(f"{turns} turns from {second:.3f} to {now:.3f} s, {len(timers)} timers")
                second, turns = now, 0
            if not ready:
                while timers and not timers[0][2]:
                    heappop(timers)
                if not timers:
                    raise DeadlockError("nothing is scheduled, and nothing is ready")
                if timers[0][0] > now:
                    self._virtual_now = now = timers[0][0]
            while timers and timers[0][0] <= now:
                ready.append(heappop(timers)[2])
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle:
                    continue
                context, callback, args = handle
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as in asyncio
                    self.call_exception_handler({"message": f"{callback!r} failed", "exception": error})
        if self._unclosed:
            raise UnclosedGeneratorError(f"{self._unclosed} was not closed: use contextlib.aclosing")
