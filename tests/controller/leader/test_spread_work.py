"""Work with many parts is spread over turns of the loop, in order, and little work runs at once."""

import asyncio
from functools import partial

import pytest

from controller.leader.spread_work import SpreadWork

pytestmark = pytest.mark.looptime


async def test_little_work_runs_at_once_and_the_rest_in_later_turns() -> None:
    work, done = SpreadWork(max_cost_per_turn=10), []
    running = asyncio.create_task(work.run())
    for number in range(4):
        work.do(6, partial(done.append, number))
    assert [0] == done
    turns = []
    while len(done) < 4:
        await asyncio.sleep(0)
        if not turns or turns[-1] != len(done):
            turns.append(len(done))
    running.cancel()

    assert [0, 1, 2, 3] == done
    assert [1, 2, 3, 4] == turns


async def test_each_turn_has_its_own_limit_and_does_at_least_one_piece() -> None:
    work, done = SpreadWork(max_cost_per_turn=10), []
    work.do(50, partial(done.append, "a"))
    await asyncio.sleep(0)
    work.do(6, partial(done.append, "b"))
    work.do(4, partial(done.append, "c"))

    assert ["a", "b", "c"] == done


async def test_work_never_overtakes_what_waits() -> None:
    work, done = SpreadWork(), []
    work.do_later(1, partial(done.append, "first"))
    work.do(1, partial(done.append, "second"))
    assert [] == done
    running = asyncio.create_task(work.run())
    await asyncio.sleep(0.01)
    running.cancel()

    assert ["first", "second"] == done


async def test_a_bug_in_the_work_ends_the_task() -> None:
    work = SpreadWork()
    work.do_later(1, lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        await work.run()
