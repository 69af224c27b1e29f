"""Large requests are answered over several turns of the loop, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from controller.leader.leader import ShardLeader
from controller.leader.request_queue import MAX_WAITING_REQUESTS, RequestQueue
from controller.leader.step_driver import MAX_COST_PER_TURN, StepDriver
from headgate.protocol import messages as m
from shard.requests.handlers import Outcome, StepResult
from shard.steps import Steps
from shard.subscriptions.refusal import Refusal
from tests.support.worlds.one_shard import CLUSTER, OneShard

pytestmark = pytest.mark.looptime


class Questions:
    """Asks one queue. Each step notes the name of its question."""

    def __init__(self, driver: StepDriver, limit: int) -> None:
        self.queue = RequestQueue(driver, limit)
        self.steps: list[str] = []
        self.answers: list[Outcome] = []

    def _steps(self, name: str, count: int, cost: int) -> Steps[StepResult]:
        for _ in range(count):
            yield cost
            self.steps.append(name)
        return m.Rejected(verdict="invalid", reason=name)

    def ask(self, name: str, count: int, cost: int = MAX_COST_PER_TURN) -> None:
        self.queue.add(self._steps(name, count, cost), self.answers.append)

    @property
    def answered(self) -> list[str]:
        return [answer.reason for answer in self.answers if isinstance(answer, m.Rejected)]


@asynccontextmanager
async def asking(limit: int = 10) -> AsyncIterator[Questions]:
    driver = StepDriver()
    running = asyncio.create_task(driver.run())
    yield Questions(driver, limit)
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


async def test_requests_are_answered_one_after_the_other() -> None:
    async with asking() as questions:
        questions.ask("first", 3)
        questions.ask("second", 3)
        assert 2 == len(questions.queue)
        await asyncio.sleep(1)

    assert ["first"] * 3 + ["second"] * 3 == questions.steps
    assert ["first", "second"] == questions.answered
    assert 0 == len(questions.queue)


async def test_a_request_that_follows_from_an_answer_is_answered_after_it() -> None:
    async with asking() as questions:
        questions.queue.add(questions._steps("first", 2, 1), lambda _: questions.ask("second", 2))
        await asyncio.sleep(1)

    assert ["first", "first", "second", "second"] == questions.steps
    assert ["second"] == questions.answered


async def test_too_many_waiting_requests_are_refused() -> None:
    async with asking(limit=3) as questions:
        for number in range(4):
            questions.ask(str(number), 3)
        (refused,) = questions.answers
        await asyncio.sleep(1)

        assert isinstance(refused, Refusal)
        assert "unavailable" == refused.verdict
        assert ["0", "1", "2"] == questions.answered
        questions.ask("later", 3)
        await asyncio.sleep(1)
        assert "later" == questions.answered[-1]


def _deliver_import(leader: ShardLeader, number: int, segments: int) -> None:
    """Hand the leader an import in this turn of the loop."""
    listed = [m.SegmentImport(segment=f"s{n}") for n in range(segments)]
    body = m.ImportTopic(topic=f"external-{number}", token=f"t{number}", segments=listed)
    request = m.Request(request_id=number, protocol=m.PROTOCOL_VERSION, client_id="client", leader_epoch=1, body=body)
    leader._on_request(m.requests_topic(CLUSTER, 0, "anonymous/client"), m.encode(request))


async def test_an_import_is_decided_over_several_turns() -> None:
    shard = OneShard()
    async with shard.leader() as leader, shard.client() as client:
        _deliver_import(leader, 1, segments=2000)
        turns = 0
        while not leader.state.topics:
            await asyncio.sleep(0)
            turns += 1
        reply = await client.reply(1)

    assert 2000 == len(reply.result.created)
    assert turns >= 3


async def test_too_many_imports_at_once_are_refused() -> None:
    shard = OneShard()
    count, segments = MAX_WAITING_REQUESTS + 1, 500
    async with shard.leader() as leader, shard.client() as client:
        for number in range(1, count + 1):
            _deliver_import(leader, number, segments)
        replies = [await client.reply(number) for number in range(1, count + 1)]
        _deliver_import(leader, 99, segments)
        later = await client.reply(99)

    assert ["TopicImportReply"] * MAX_WAITING_REQUESTS + ["Rejected"] == [type(each).__name__ for each in replies]
    assert "unavailable" == replies[-1].verdict
    assert segments == len(later.result.created)
