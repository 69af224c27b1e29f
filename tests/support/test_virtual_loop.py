"""The loop jumps from timer to timer, and keeps the order in which equal timers were set."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support import virtual_loop
from tests.support.virtual_loop import DeadlockError, EndlessTurnsError, UnclosedGeneratorError, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def test_timers_run_by_time_and_then_in_the_order_in_which_they_were_set(loop: VirtualLoop) -> None:
    ran: list[str] = []
    done = loop.create_future()
    for when, name in [(2.0, "c"), (1.0, "a"), (1.0, "b"), (2.0, "d")]:
        loop.call_at(when, ran.append, name)
    loop.call_at(1.5, ran.append, "cancelled").cancel()
    loop.call_soon(ran.append, "cancelled").cancel()
    loop.call_at(3600, done.set_result, None)

    loop.run_until_complete(done)

    assert (ran, loop.time()) == (["a", "b", "c", "d"], 3600)


def test_what_is_ready_runs_before_time_passes(loop: VirtualLoop) -> None:
    async def turns() -> float:
        loop.call_later(0.001, lambda: None)
        for _ in range(100):
            await asyncio.sleep(0)
        return loop.time()

    assert loop.run_until_complete(turns()) == 0


def test_a_callback_that_fails_is_reported_and_the_others_run(loop: VirtualLoop) -> None:
    reported: list[object] = []
    done = loop.create_future()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    error = RuntimeError("a bug")

    def fail() -> None:
        raise error

    loop.call_soon(fail)
    loop.call_later(1, done.set_result, None)
    loop.run_until_complete(done)

    assert reported == [error]


def test_a_loop_that_can_never_continue_raises(loop: VirtualLoop) -> None:
    with pytest.raises(DeadlockError):
        loop.run_until_complete(loop.create_future())


def test_turns_without_an_end_raise(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "_MOST_TURNS", 1000)

    def again() -> None:
        loop.call_soon(again)

    loop.call_later(1, again)

    with pytest.raises(EndlessTurnsError, match=r"to 1\.000 s"):
        loop.run_until_complete(asyncio.sleep(2))


def test_a_generator_that_is_not_closed_fails_the_run(loop: VirtualLoop) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def leave_early() -> None:
        async for _ in numbers():
            break
        gc.collect()
        await asyncio.sleep(1)

    with pytest.raises(UnclosedGeneratorError, match="numbers was not closed"):
        loop.run_until_complete(leave_early())
