"""Large requests are answered over several turns of the loop, one after the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller.context.step_driver import MAX_COST_PER_TURN, StepDriver
from controller.leader import outcomes
from controller.leader.outcomes import RequestQueue
from headgate.protocol.replies import Rejected
from shard.requests.handlers import Outcome, StepResult
from shard.steps import Steps


class Questions:
    """Asks one queue. Each step notes the name of its question."""

    def __init__(self, driver: StepDriver) -> None:
        self.queue = RequestQueue(driver)
        self.steps: list[str] = []
        self.answers: list[Outcome] = []

    def _steps(self, name: str, count: int, cost: int) -> Steps[StepResult]:
        for _ in range(count):
            yield cost
            self.steps.append(name)
        return Rejected(verdict="invalid", reason=name)

    def ask(self, name: str, count: int, cost: int = MAX_COST_PER_TURN) -> None:
        self.queue.add(self._steps(name, count, cost), self.answers.append)

    @property
    def answered(self) -> list[str]:
        return [answer.reason for answer in self.answers if isinstance(answer, Rejected)]


@asynccontextmanager
async def asking() -> AsyncIterator[Questions]:
    driver = StepDriver()
    running = asyncio.create_task(driver.run())
    yield Questions(driver)
    running.cancel()


async def test_a_short_answer_is_complete_in_the_turn_of_its_request() -> None:
    async with asking() as questions:
        questions.ask("short", 10, cost=4)

        assert ["short"] == questions.answered


async def test_too_many_waiting_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MAX_WAITING_REQUESTS", 3)
    async with asking() as questions:
        for number in range(4):
            questions.ask(str(number), 3)
        (refused,) = questions.answers
        await asyncio.sleep(1)

        assert "unavailable" == refused.verdict
        assert ["0", "1", "2"] == questions.answered
        questions.ask("later", 3)
        await asyncio.sleep(1)
        assert "later" == questions.answered[-1]
