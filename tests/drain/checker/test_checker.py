"""The daemon's side alone, against a server of the same protocol that misbehaves on request. No Spark."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from drain.checker.checker import SparkDrainChecker
from drain.external.table_mapping import ExternalView
from drain.protocol import (
    BacklogRequest,
    BacklogResponse,
    DrainCheckError,
    DrainedRequest,
    DrainedResponse,
    DrainQuery,
    DrainQueryResult,
    ExternalBacklogQuery,
    ExternalBacklogResponse,
    FailureResponse,
    decode_request,
    encode_line,
    fit_into_line,
)
from headgate.errors import ConfigError
from metrics import events
from tests.support.recording_observer import RecordingObserver


class FakeDrainService:
    """Answers every query with the segments that it has been told are drained."""

    def __init__(self) -> None:
        self.drained: frozenset[int] = frozenset()
        self.watermark = 100
        self.error: str | None = None
        self.requests: list[object] = []
        self.connections = 0
        self.arrived = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.say_instead: list[bytes | None] = []
        """Lines to answer with, once each; None hangs up."""
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while line := await reader.readline():
                request = decode_request(line)
                self.requests.append(request)
                self.arrived.set()
                await self.may_answer.wait()
                if self.say_instead:
                    instead = self.say_instead.pop(0)
                    if instead is None:
                        break
                    writer.write(instead)
                    if not instead.endswith(b"\n"):
                        break
                else:
                    writer.write(encode_line(self._reply(request)))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _reply(self, request):
        if isinstance(request, BacklogRequest):
            external = [ExternalBacklogResponse(shard=each.shard, topic_id=each.topic_id) for each in request.external]
            return BacklogResponse(id=request.id, rows=[], failures={3: "a reason"}, external=external)
        assert isinstance(request, DrainedRequest)
        answers = [
            DrainQueryResult(query.segments & self.drained, self.watermark, self.error) for query in request.queries
        ]
        return DrainedResponse(id=request.id, answers=answers)

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def service(tmp_path):
    fake = FakeDrainService()
    server = await asyncio.start_unix_server(fake.serve, tmp_path / "s")
    yield fake
    fake.may_answer.set()
    server.close()
    fake.hang_up()
    await server.wait_closed()


@asynccontextmanager
async def checker_at(tmp_path, timeout_seconds=60.0, on_state=None, observer=None):
    socket = f"unix:{tmp_path / 's'}"
    async with SparkDrainChecker(
        socket, timeout_seconds=timeout_seconds, on_state=on_state, observer=observer, rng=random.Random(1)
    ) as checker:
        yield checker


def query(*segments: int, shard: int = 0, at_least_chunk: int = 0) -> DrainQuery:
    return DrainQuery(shard, 1, 2, 0, frozenset(segments), at_least_chunk)


async def test_the_drained_ones_of_those_asked_for_are_told(service, tmp_path):
    service.drained = frozenset({1, 3, 5})
    async with checker_at(tmp_path) as checker:
        assert frozenset({1, 3}) == await checker.drained(query(1, 2, 3))


async def test_questions_that_arrive_during_a_run_share_the_next_one(service, tmp_path):
    service.drained = frozenset({1})
    service.may_answer.clear()
    async with checker_at(tmp_path) as checker, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(checker.drained(query(1)))
        await service.arrived.wait()
        later = [tasks.create_task(checker.drained(query(1, 2, shard=n))) for n in range(5)]
        told = tasks.create_task(checker.backlog([0], 7))
        await asyncio.sleep(0)
        service.may_answer.set()

    assert [len(request.queries) for request in service.requests if isinstance(request, DrainedRequest)] == [1, 5]
    assert [frozenset({1})] * 6 == [first.result(), *(task.result() for task in later)]
    assert told.result().failures == {3: "a reason"}
    assert service.connections == 1


def external(shard: int, topic_id: int, *labels: str) -> ExternalBacklogQuery:
    names = ExternalView(topic=f"t{topic_id}", subscriptions={2: "s"}, labels=dict(enumerate(labels)))
    return ExternalBacklogQuery(shard, topic_id, names)


async def test_the_external_topics_of_several_shards_travel_in_one_question_the_newest_of_each(service, tmp_path):
    """Each shard has a reign of its own, which asks for itself."""
    async with checker_at(tmp_path) as checker, asyncio.TaskGroup() as tasks:
        for shard, asked in enumerate(([external(0, 1, "a")], [external(1, 1, "b"), external(1, 9)], [])):
            tasks.create_task(checker.backlog([shard], 7, asked))
        told = tasks.create_task(checker.backlog([0], 8, [external(0, 1, "a", "newer")]))

    (request,) = service.requests
    assert request.external == [external(0, 1, "a", "newer"), external(1, 1, "b"), external(1, 9)]
    assert [(each.shard, each.topic_id) for each in told.result().external] == [(0, 1), (1, 1), (1, 9)]


async def test_names_that_do_not_fit_into_a_question_are_told_instead_of_asked(service, tmp_path, monkeypatch):
    monkeypatch.setattr("drain.checker.checker.fit_into_line", lambda queries: fit_into_line(queries, limit_bytes=200))
    many = external(0, 1, *(f"shardId-{at:012}" for at in range(100)))
    async with checker_at(tmp_path) as checker:
        told = await checker.backlog([0], 7, [many, *(external(0, at, "a") for at in (2, 3, 4))])

    said = {each.topic_id: each.reason for each in told.external}
    asked = [each.topic_id for each in service.requests[0].external]
    assert asked == [topic_id for topic_id, reason in said.items() if not reason] == [2]
    assert said[1] == "the names of its 100 segments do not fit into a query any more"
    assert "names of its 1 segments" in said[3], "together they are too many"


async def test_those_who_ask_a_moment_after_the_first_share_its_run(service, tmp_path):
    """Subscriptions that reach an end together ask in the turns in which their acknowledgements become durable."""
    async with checker_at(tmp_path) as checker, asyncio.TaskGroup() as tasks:
        for n in range(5):
            tasks.create_task(checker.drained(query(1, shard=n)))
            await asyncio.sleep(0)

    assert [len(request.queries) for request in service.requests] == [5]


class CheckObserver(RecordingObserver):
    """What the checker reports."""

    def __init__(self):
        super().__init__()
        self.failed = asyncio.Event()

    def observe(self, event):
        super().observe(event)
        if isinstance(event, events.DrainCheckFailed):
            self.failed.set()


async def test_answers_and_watermarks_are_told_to_metrics(service, tmp_path):
    observer = CheckObserver()
    async with checker_at(tmp_path, observer=observer) as checker:
        await checker.drained(query(1, shard=4))
        await checker.backlog([0, 1], 7)

    assert len(observer.of(events.DrainCheckCompleted)) == 2
    assert observer.of(events.DrainWatermarkAdvanced) == [events.DrainWatermarkAdvanced(shard=4, chunk=100)]
    assert observer.of(events.DrainCheckFailed) == [events.DrainCheckFailed(reason="failed")]
    (asked,) = [request for request in service.requests if isinstance(request, BacklogRequest)]
    assert (asked.shards, asked.now_ms) == ([0, 1], 7)


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        pytest.param(None, "unreachable", id="hung up"),
        pytest.param(b"rubbish\n", "invalid", id="another protocol"),
        pytest.param(encode_line(FailureResponse(id=1, error="no")), "failed", id="told that it failed"),
    ],
)
async def test_each_failure_is_told_to_metrics_with_its_reason(service, tmp_path, instead, reason):
    observer = CheckObserver()
    service.say_instead.append(instead)
    async with checker_at(tmp_path, observer=observer) as checker:
        with pytest.raises(DrainCheckError):
            await checker.drained(query(1))
        # The worker tells after it has told whoever asked.
        async with asyncio.timeout(60):
            await observer.failed.wait()

    assert observer.of(events.DrainCheckFailed) == [events.DrainCheckFailed(reason=reason)]


async def test_a_question_that_nobody_answers_in_time_is_told_to_metrics(service, tmp_path):
    observer = CheckObserver()
    service.may_answer.clear()
    async with checker_at(tmp_path, timeout_seconds=0.05, observer=observer) as checker:
        with pytest.raises(DrainCheckError):
            await checker.drained(query(1))

    assert observer.of(events.DrainCheckFailed)[0] == events.DrainCheckFailed(reason="timed_out")


async def test_an_answer_that_rests_on_too_little_is_refused(service, tmp_path):
    service.drained, service.watermark = frozenset({1}), 41
    async with checker_at(tmp_path) as checker:
        with pytest.raises(DrainCheckError, match="counted to chunk 41, needed is 42"):
            await checker.drained(query(1, at_least_chunk=42))

        assert frozenset({1}) == await checker.drained(query(1, at_least_chunk=41))


async def test_a_shard_that_cannot_be_counted_is_an_error(service, tmp_path):
    service.error = "ledger/shard=0000/000000000002.parquet is cut short"
    async with checker_at(tmp_path) as checker:
        with pytest.raises(DrainCheckError, match="cut short"):
            await checker.drained(query(1))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"certainly not json\n", id="garbage"),
        pytest.param(b'{"type":"pong","id":1,"runs":0}\n', id="another reply"),
        pytest.param(encode_line(DrainedResponse(id=7, answers=[DrainQueryResult()])), id="another id"),
        pytest.param(encode_line(DrainedResponse(id=1, answers=[])), id="an answer too few"),
        pytest.param(encode_line(FailureResponse(id=1, error="no")), id="a failure"),
        pytest.param(None, id="hanging up"),
        pytest.param(b"half a line", id="half a line"),
    ],
)
async def test_whatever_else_is_said_is_an_error_and_the_next_question_is_answered(service, tmp_path, line):
    service.drained = frozenset({1})
    service.say_instead = [line]
    states = []
    async with checker_at(tmp_path, on_state=lambda *state: states.append(state[0])) as checker:
        with pytest.raises(DrainCheckError):
            await checker.drained(query(1))

        assert frozenset({1}) == await checker.drained(query(1))
    assert states == ["degraded", "ready"]


async def test_a_hang_is_an_error_after_the_time_limit(service, tmp_path):
    service.may_answer.clear()
    async with checker_at(tmp_path, timeout_seconds=0.1) as checker:
        with pytest.raises(DrainCheckError, match="no answer from"):
            await checker.drained(query(1))


async def test_a_question_waits_for_a_service_that_is_still_starting(tmp_path):
    fake = FakeDrainService()
    fake.drained = frozenset({1})
    async with checker_at(tmp_path) as checker, asyncio.TaskGroup() as tasks:
        degraded = asyncio.Event()
        checker._on_state = lambda state, reason: degraded.set()
        asking = tasks.create_task(checker.drained(query(1)))
        await degraded.wait()
        server = await asyncio.start_unix_server(fake.serve, tmp_path / "s")
        assert frozenset({1}) == await asking
    server.close()
    fake.hang_up()
    await server.wait_closed()


async def test_a_process_that_is_said_to_be_well_is_asked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("drain.checker.checker.RECONNECT_SECONDS", (600.0, 600.0))
    fake = FakeDrainService()
    fake.drained = frozenset({1})
    async with checker_at(tmp_path) as checker, asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        degraded = asyncio.Event()
        checker._on_state = lambda state, reason: degraded.set()
        asking = tasks.create_task(checker.drained(query(1)))
        await degraded.wait()
        server = await asyncio.start_unix_server(fake.serve, tmp_path / "s")
        checker.on_process_ready()
        assert frozenset({1}) == await asking
    server.close()
    fake.hang_up()
    await server.wait_closed()


async def test_nobody_there_is_an_error_after_the_time_limit(tmp_path):
    async with checker_at(tmp_path, timeout_seconds=0.2) as checker:
        with pytest.raises(DrainCheckError, match="no answer from"):
            await checker.drained(query(1))


async def test_closing_tells_those_who_wait(service, tmp_path):
    service.may_answer.clear()
    async with checker_at(tmp_path) as checker:
        under_way = asyncio.ensure_future(checker.drained(query(1)))
        await service.arrived.wait()
        waiting = asyncio.ensure_future(checker.drained(query(1)))
        await asyncio.sleep(0)
    for asked in (under_way, waiting):
        with pytest.raises(DrainCheckError, match="closed"):
            await asked


async def test_who_gave_up_is_not_asked_for(service, tmp_path):
    service.may_answer.clear()
    async with checker_at(tmp_path) as checker:
        first = asyncio.ensure_future(checker.drained(query(1)))
        await service.arrived.wait()
        given_up = asyncio.ensure_future(checker.drained(query(2)))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        service.may_answer.set()
        await first
        await checker.drained(query(3))

    assert [[{1}], [{3}]] == [[set(asked.segments) for asked in request.queries] for request in service.requests]


@pytest.mark.parametrize("socket", ["", "unix:", "http://x", "tcp:127.0.0.1", "tcp:127.0.0.1:99999", "tcp:h:x"])
def test_an_address_that_names_nothing_is_refused(socket):
    with pytest.raises(ConfigError, match="write unix:/absolute/path or tcp:"):
        SparkDrainChecker(socket)


def test_the_daemons_side_imports_no_spark():
    code = "import drain.checker.checker, drain.checker.supervisor, drain.spark.java, sys; print(any('pyspark' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
