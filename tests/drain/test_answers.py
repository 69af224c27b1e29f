"""Keeping up without being asked: what grows is counted ahead of the next question, and nothing else is."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from drain.answers import KEEP_UP_CHUNKS, Answers
from drain.counting import JvmGoneError
from drain.job import RunOutcome
from drain.protocol import AskDrained, DrainQuestion
from drain.results import Result
from headgate.errors import ChunkError

pytestmark = pytest.mark.looptime


class Ledger:
    """A ledger of a certain length, and a job that counts it."""

    def __init__(self) -> None:
        self.length = 10
        self.runs: list[list[int]] = []
        self.fault: Exception | None = None

    async def run(self, shards: Sequence[int]) -> RunOutcome:
        self.runs.append(list(shards))
        if isinstance(self.fault, JvmGoneError):
            raise self.fault
        return RunOutcome(results={shard: Result(shard, self.length, ()) for shard in shards}, failures={})

    async def newer_than(self, shard: int, watermark: int) -> range:
        if isinstance(self.fault, ChunkError):
            raise self.fault
        return range(watermark + 1, self.length + 1)


def question(shard: int = 0) -> AskDrained:
    return AskDrained(id=1, questions=[DrainQuestion(shard, 1, 2, 0, frozenset({0}), 1)])


async def asked(ledger: Any) -> Answers:
    answers = Answers(ledger, ledger)
    await answers.__aenter__()
    await answers.reply(question())
    return answers


async def test_a_shard_that_has_grown_is_counted_before_anybody_asks() -> None:
    ledger = Ledger()
    answers = await asked(ledger)
    ledger.length += KEEP_UP_CHUNKS
    await asyncio.sleep(3)
    await answers.__aexit__(None, None, None)

    assert [[0], [0]] == ledger.runs


async def test_a_shard_that_has_hardly_grown_is_left_alone() -> None:
    ledger = Ledger()
    answers = await asked(ledger)
    ledger.length += KEEP_UP_CHUNKS - 1
    await asyncio.sleep(60)
    await answers.__aexit__(None, None, None)

    assert [[0]] == ledger.runs


async def test_a_shard_nobody_asked_about_is_left_alone() -> None:
    """This process may serve daemons that lead other shards."""
    ledger = Ledger()
    answers = await asked(ledger)
    ledger.length += 1000
    await asyncio.sleep(60)
    await answers.__aexit__(None, None, None)

    assert {0} == {shard for run in ledger.runs for shard in run}


@pytest.mark.parametrize("fault", [ChunkError("a hole"), JvmGoneError("gone")], ids=["bad ledger", "dead JVM"])
async def test_a_fault_met_while_idle_is_left_to_whoever_asks_next(fault: Exception) -> None:
    ledger = Ledger()
    answers = await asked(ledger)
    ledger.fault = fault
    ledger.length += 1000
    await asyncio.sleep(10)
    assert not answers.worker.done()
    ledger.fault = None
    await answers.reply(question())
    await answers.__aexit__(None, None, None)
