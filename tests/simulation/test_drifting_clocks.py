"""Each machine has its own time, servers have the true one, and timers fire when their machine's clock shows it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.drifting_clocks import DriftingLoop, MachineClock


def shown() -> float:
    return asyncio.get_running_loop().time()


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``work`` in a loop of its own, on true time."""
    loop = DriftingLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


class Server:
    """A client of a server, which notes the time at which it is called."""

    def __init__(self) -> None:
        self.called_at: list[float] = []
        self.handlers: list[Callable[[], object]] = []

    def subscribe(self, handler: Callable[[], object]) -> None:
        self.called_at.append(shown())
        self.handlers.append(handler)

    async def request(self) -> None:
        await asyncio.sleep(1)
        self.called_at.append(shown())


async def two_machines() -> tuple[MachineClock, MachineClock]:
    """Return a fast and a slow clock, a hundred seconds after their start."""
    fast, slow = MachineClock(), MachineClock()
    fast.drift(1.1)
    slow.drift(0.9)
    await asyncio.sleep(100)
    return fast, slow


def test_programs_see_the_clock_of_their_machine() -> None:
    async def work() -> list[float]:
        fast, slow = await two_machines()
        return [shown(), fast.run(shown), slow.run(shown)]

    assert [round(each, 6) for each in run(work)] == [100, 110, 90]


def test_a_program_sleeps_by_its_own_clock() -> None:
    async def work() -> list[float]:
        fast, slow = await two_machines()
        await fast.awaited(asyncio.sleep(11))
        after_fast = shown()
        await slow.awaited(asyncio.sleep(9))
        return [after_fast, shown()]

    assert [round(each, 6) for each in run(work)] == [110, 120]


def test_a_timer_never_fires_before_its_clock_shows_its_time() -> None:
    """Otherwise a program that waits for a moment would set a timer for the same moment again, without end."""

    async def late(moment: float) -> float:
        await asyncio.sleep(moment - shown())
        return shown() - moment

    async def work() -> list[float]:
        clocks = await two_machines()
        return [await clock.awaited(late(clock.run(shown) + step / 7)) for step in range(1, 50) for clock in clocks]

    assert min(run(work)) >= 0


def test_a_change_of_the_rate_moves_no_clock() -> None:
    async def work() -> tuple[float, float]:
        fast, _ = await two_machines()
        fast.drift(1.0)
        before = fast.run(shown)
        await asyncio.sleep(10)
        return before, fast.run(shown)

    before, after = run(work)
    assert (round(before, 6), round(after, 6)) == (110, 120)


def test_servers_are_on_true_time_and_handlers_on_that_of_their_machine() -> None:
    async def work() -> tuple[list[float], list[float]]:
        fast, _ = await two_machines()
        server, handled = Server(), []
        client = fast.around(server)
        fast.run(client.subscribe, lambda: handled.append(shown()))
        await fast.awaited(client.request())
        server.handlers[0]()
        return server.called_at, handled

    called, handled = run(work)
    assert [round(each, 6) for each in called] == [100, 101]
    assert [round(each, 6) for each in handled] == [111.1]
