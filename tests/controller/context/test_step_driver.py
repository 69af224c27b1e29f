"""Long work takes its steps over turns of the loop, in rotation, and little work is done at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

from controller.context.step_driver import SerialSteps, StepDriver, TurnBudget
from shard.steps import Steps

never = partial(bool, False)


@asynccontextmanager
async def running(*drivers: StepDriver) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(driver.run()) for driver in drivers]
    yield
    for task in tasks:
        task.cancel()


def noted(done: list[str], name: str, count: int, cost: int) -> Steps[None]:
    for _ in range(count):
        yield cost
        done.append(name)


async def test_little_work_is_done_at_once_and_the_rest_in_later_turns() -> None:
    driver, done = StepDriver(TurnBudget(max_cost=10)), []
    async with running(driver):
        for number in range(4):
            driver.do(6, partial(done.append, number))
        assert [0] == done
        counts = [1]
        while len(done) < 4:
            await asyncio.sleep(0)
            counts.append(len(done))

    assert [0, 1, 2, 3] == done
    assert all(after - before <= 1 for before, after in pairwise(counts))


async def test_each_turn_has_its_own_limit_and_takes_at_least_one_step() -> None:
    driver, done = StepDriver(TurnBudget(max_cost=10)), []
    driver.do(50, partial(done.append, "a"))
    await asyncio.sleep(0)
    driver.do(6, partial(done.append, "b"))
    driver.do(4, partial(done.append, "c"))

    assert ["a", "b", "c"] == done


async def test_work_never_overtakes_what_waits() -> None:
    driver, done = StepDriver(), []
    driver.do_later(1, partial(done.append, "first"))
    driver.do(1, partial(done.append, "second"))
    assert [] == done
    async with running(driver):
        await asyncio.sleep(0.01)

    assert ["first", "second"] == done


async def test_drivers_share_the_budget_of_a_turn_and_take_turns() -> None:
    budget, done = TurnBudget(max_cost=10), []
    first, second = StepDriver(budget), StepDriver(budget)
    async with running(first, second):
        first.begin(noted(done, "a", 5, 10))
        second.begin(noted(done, "b", 5, 10))
        counts = [len(done)]
        while len(done) < 10:
            await asyncio.sleep(0)
            counts.append(len(done))

    assert all(after - before <= 1 for before, after in pairwise(counts))
    assert {"a", "b"} == set(done[1:4]), "neither waits until the other has finished"


async def test_serial_work_is_complete_in_order_with_one_step_in_a_turn() -> None:
    done: list[str] = []
    serial = SerialSteps(TurnBudget(max_cost=10), lambda: done.append("|"))
    works = asyncio.gather(*(serial.complete(noted(done, name, 3, 10), never) for name in "abc"))
    counts = [0]
    while not works.done():
        await asyncio.sleep(0)
        counts.append(len(done))

    assert list("aaa|bbb|ccc|") == done
    assert all(after - before <= 2 for before, after in pairwise(counts)), "one step, and that all are taken"


async def test_urgent_serial_work_goes_first_also_when_it_becomes_so_while_it_waits() -> None:
    """What has begun continues after it."""
    done: list[str] = []
    serial = SerialSteps(TurnBudget(max_cost=10), lambda: done.append("|"))
    urgent = dict.fromkeys("cd", lambda: bool(done))
    await asyncio.gather(*(serial.complete(noted(done, name, 3, 10), urgent.get(name, never)) for name in "abcd"))

    assert list("accc|ddd|aa|bbb|") == done


async def test_serial_work_continues_after_work_that_was_cancelled_and_work_that_failed() -> None:
    def failing() -> Steps[None]:
        yield 10
        raise ValueError

    done: list[str] = []
    serial = SerialSteps(TurnBudget(max_cost=10), lambda: done.append("|"))
    cancelled = asyncio.create_task(serial.complete(noted(done, "a", 100, 10), never))
    failed = asyncio.create_task(serial.complete(failing(), never))
    last = asyncio.create_task(serial.complete(noted(done, "b", 1, 10), never))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled, failed, last])

    assert isinstance(failed.exception(), ValueError)
    assert ["b", "|"] == done[-2:]
    assert done.count("|") == 1
    assert done.count("a") < 100
