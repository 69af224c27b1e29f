"""Long answers take several turns of the loop, see one state, and are computed one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from controller.decisions.handlers import Deferred
from controller.leader.answer_queue import MAX_RESTARTS, MAX_WAITING_ANSWERS, Answer, AnswerQueue
from controller.leader.spread_work import MAX_COST_PER_TURN, SpreadWork
from coordinator.decisions.refusal import Refusal
from coordinator.reporting.steps import Steps
from headgate.protocol import messages as m

pytestmark = pytest.mark.looptime


class Questions:
    """Asks one queue. The state is ``version``, and each step notes the name and the version it has seen."""

    def __init__(self, work: SpreadWork) -> None:
        self.queue = AnswerQueue(work)
        self.version = 0
        self.steps: list[tuple[str, int]] = []
        self.answers: list[Answer] = []

    def _steps(self, name: str, count: int, cost: int) -> Steps[Answer]:
        for _ in range(count):
            yield cost
            self.steps.append((name, self.version))
        return m.Rejected(verdict="invalid", reason=name)

    def ask(self, name: str, count: int, cost: int = MAX_COST_PER_TURN) -> Refusal | None:
        asked = self.queue.defer(lambda: self._steps(name, count, cost), lambda: self.version)
        if isinstance(asked, Refusal):
            return asked
        assert isinstance(asked, Deferred)
        asked.start(self.answers.append)
        return None

    @property
    def answered(self) -> list[str]:
        return [answer.reason for answer in self.answers if isinstance(answer, m.Rejected)]


@asynccontextmanager
async def asking() -> AsyncIterator[Questions]:
    work = SpreadWork()
    running = asyncio.create_task(work.run())
    yield Questions(work)
    running.cancel()


async def test_a_short_answer_is_complete_in_the_turn_of_its_request() -> None:
    async with asking() as questions:
        questions.ask("short", 10, cost=4)

        assert ["short"] == questions.answered


async def test_a_long_answer_takes_one_turn_for_each_expensive_step() -> None:
    async with asking() as questions:
        questions.ask("long", 5)
        seen = [len(questions.steps)]
        while not questions.answered:
            await asyncio.sleep(0)
            seen.append(len(questions.steps))

    assert 5 == seen[-1]
    assert all(after - before <= 1 for before, after in pairwise(seen))


async def test_answers_are_computed_one_after_the_other() -> None:
    async with asking() as questions:
        questions.ask("first", 3)
        questions.ask("second", 3)
        await asyncio.sleep(1)

    assert ["first"] * 3 + ["second"] * 3 == [name for name, _ in questions.steps]
    assert ["first", "second"] == questions.answered


async def test_an_answer_begins_again_after_a_change() -> None:
    async with asking() as questions:
        questions.ask("a", 4)
        for _ in range(3):
            await asyncio.sleep(0)
        begun = len(questions.steps)
        questions.version = 1
        await asyncio.sleep(1)

    assert 0 < begun < 4
    assert [("a", 1)] * 4 == questions.steps[begun:]
    assert ["a"] == questions.answered


async def test_constant_changes_do_not_delay_an_answer_forever() -> None:
    async with asking() as questions:
        questions.ask("a", 100)
        for _ in range(4 * MAX_RESTARTS):
            questions.version += 1
            await asyncio.sleep(0)

    assert ["a"] == questions.answered
    assert 1 == len({version for _, version in questions.steps[-100:]}), "the last attempt sees one state"


async def test_too_many_waiting_answers_are_refused() -> None:
    async with asking() as questions:
        for number in range(MAX_WAITING_ANSWERS):
            assert questions.ask(str(number), 3) is None
        refused = questions.ask("one more", 3)
        await asyncio.sleep(1)

        assert refused is not None
        assert "unavailable" == refused.verdict
        assert [str(number) for number in range(MAX_WAITING_ANSWERS)] == questions.answered
        assert questions.ask("later", 3) is None
