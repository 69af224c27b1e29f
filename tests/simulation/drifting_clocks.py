"""Clocks of machines that run fast or slow, in one event loop.

The programs of a machine read its clock: the loop's time, and what is derived from it, depend on who asks. The servers, the
network and the checker are on true time. So a client of a server calls it on true time, and the handlers that it registers run
on the time of its machine.

A change of the rate applies to timers that are set afterwards.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, Self, TypeVar, cast

from tests.support.virtual_loop import VirtualLoop

_CLOCK: ContextVar[MachineClock | None] = ContextVar("clock", default=None)
"""The clock of the running program; None: true time."""

ClientT = TypeVar("ClientT")


class TrueClock:
    """The clock of a machine on true time, in runs without drift."""

    def drift(self, rate: float) -> None:
        """Refuse: only a run whose plan has a drift can change a clock."""
        raise AssertionError(f"this clock cannot run at {rate}")

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the machine's time."""
        return function(*arguments)

    async def awaited(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the machine's time."""
        return await work

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler that runs on the machine's time."""
        return function

    def around(self, client: ClientT) -> ClientT:
        """Return the client of a server, which a program of this machine uses."""
        return client


class MachineClock(TrueClock):
    """A clock that starts with the true time, and may run at another rate."""

    def __init__(self) -> None:
        self.rate = 1.0
        self._true = self._shown = _true_time()

    def shown(self, true_seconds: float) -> float:
        """Return what the clock shows at a true time."""
        return self._shown + (true_seconds - self._true) * self.rate

    def true(self, shown_seconds: float) -> float:
        """Return the first true time at which the clock shows ``shown_seconds``."""
        found = self._true + (shown_seconds - self._shown) / self.rate
        while self.shown(found) < shown_seconds:  # rounded down: a timer would be early, and set again for this moment
            found = math.nextafter(found, math.inf)
        return found

    def drift(self, rate: float) -> None:
        """Run at ``rate`` from now on."""
        now = _true_time()
        self._true, self._shown, self.rate = now, self.shown(now), rate

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `TrueClock.run`. A task or timer that the function creates runs on it too."""
        with _on(self):
            return function(*arguments)

    async def awaited(self, work: Coroutine[Any, Any, Any]) -> Any:
        with _on(self):
            return await work

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self.run, function)

    def around(self, client: ClientT) -> ClientT:
        return cast("ClientT", _OnTrueTime(client, self))


class DriftingLoop(VirtualLoop):
    """Shows each program the time of its machine."""

    def time(self) -> float:
        """Return virtual seconds, as the machine of the running program measures them."""
        clock = _CLOCK.get()
        return self._virtual_now if clock is None else clock.shown(self._virtual_now)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Call ``callback`` after ``delay`` seconds of the machine's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """Call ``callback`` when the machine's clock shows ``when``."""
        clock = _CLOCK.get() if context is None else context.get(_CLOCK)
        if clock is None:
            return super().call_at(when, callback, *args, context=context)
        handle = super().call_at(clock.true(when), callback, *args, context=context)
        handle._when = when  # what its program sees
        return handle


class _OnTrueTime:
    """Calls a client on true time. Functions among the arguments are handlers."""

    def __init__(self, client: Any, clock: MachineClock) -> None:
        self._client = client
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if found is self._client:  # as a part of it, which a fake also is
            return self
        return partial(self._call, found) if callable(found) else found

    async def __aenter__(self) -> Self:
        await self._call(self._client.__aenter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._call(self._client.__aexit__, *error)

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        given = [self._clock.handler(each) if callable(each) else each for each in arguments]
        with _on(None):
            result = method(*given, **options)
        return _awaited(result) if inspect.iscoroutine(result) else result


async def _awaited(work: Coroutine[Any, Any, Any]) -> Any:
    with _on(None):
        return await work


@contextmanager
def _on(clock: MachineClock | None) -> Iterator[None]:
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)


def _true_time() -> float:
    with _on(None):
        return asyncio.get_running_loop().time()
