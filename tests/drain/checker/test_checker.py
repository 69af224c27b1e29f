"""The checker alone, against a server of the same protocol that misbehaves on request. No Spark."""

import asyncio
import random
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from drain import protocol
from drain.checker.checker import SparkDrainChecker
from drain.checker.connection import Connection
from drain.protocol import (
    MAX_OPEN_REQUESTS,
    BacklogRequest,
    DrainCheckError,
    DrainedResponse,
    DrainQuery,
    ExternalBacklogQuery,
    FailureResponse,
    decode_request,
    encode_line,
)
from drain.service.service import DrainListener
from drain.table_mapping import ExternalView
from headgate.log.lossy_output import take_lost_lines
from metrics import events
from tests.support.fakes.drain_service import FakeDrainService
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


@pytest.fixture
async def service(tmp_path):
    fake = FakeDrainService()
    async with started(fake, tmp_path):
        yield fake


@asynccontextmanager
async def started(fake, tmp_path):
    async with DrainListener(tmp_path / "s", fake.serve):
        yield
        fake.may_answer.set()
    await fake.hang_up()


def checker_at(tmp_path, **settings):
    return SparkDrainChecker(str(tmp_path / "s"), rng=random.Random(1), **settings)


def query(*segments: int, shard: int = 0, at_least_chunk: int = 0) -> DrainQuery:
    return DrainQuery(shard, 1, 2, 0, frozenset(segments), at_least_chunk)


async def test_replies_may_arrive_in_another_order_and_after_their_requests_timed_out(tmp_path):
    """The server answers the second request first, and the first one only after it timed out."""

    async def serve(reader, writer):
        first, second = [decode_request(await reader.readline()) for _ in range(2)]
        writer.write(
            encode_line(DrainedResponse(id=second.id, drained=dict.fromkeys(second.query.segments, 4), watermark=1))
        )
        ping, third = [decode_request(await reader.readline()) for _ in range(2)]
        writer.write(encode_line(protocol.Pong(id=ping.id, runs=0)))
        for each in (first, third):
            drained = dict.fromkeys(each.query.segments, 4)
            writer.write(encode_line(DrainedResponse(id=each.id, drained=drained, watermark=1)))
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    async with server, checker_at(tmp_path, timeout_seconds=0.5) as checker:
        first, second = await asyncio.gather(
            checker.drained(query(1)), checker.drained(query(2)), return_exceptions=True
        )
        assert isinstance(first, DrainCheckError)
        assert second.drained == {2: 4}
        assert (await checker.drained(query(3))).drained == {3: 4}


async def test_more_queries_than_the_limit_fail_at_once(service, tmp_path):
    service.may_answer.clear()
    async with checker_at(tmp_path) as checker:
        checker._open_requests = MAX_OPEN_REQUESTS
        with pytest.raises(DrainCheckError, match="queries are already waiting"):
            await checker.drained(query(1))


def external(shard: int, topic_id: int, *labels: str) -> ExternalBacklogQuery:
    names = ExternalView(topic=f"t{topic_id}", labels=dict(enumerate(labels)))
    return ExternalBacklogQuery(shard, topic_id, names)


async def test_names_that_do_not_fit_into_a_request_are_reported_instead_of_sent(service, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_EXTERNAL_BYTES", 150)
    large = external(0, 1, *(f"shardId-{at:012}" for at in range(100)))
    async with checker_at(tmp_path) as checker:
        queries = [large, *(external(0, at, "a") for at in (2, 3, 4))]
        response = await checker.backlog(BacklogRequest(shard=0, now_ms=7, external=queries))

    reasons = {each.topic_id: each.reason for each in response.external}
    sent = [each.topic_id for each in service.requests[0].external]
    assert sent == [topic_id for topic_id, reason in reasons.items() if not reason] == [2]
    assert reasons[1] == "the names of its 100 segments do not fit into the request"
    assert "names of its 1 segments" in reasons[3], "together they are too large"


async def test_a_reply_that_is_based_on_too_old_a_chunk_is_an_error(service, tmp_path):
    service.drained, service.watermark = frozenset({1}), 41
    async with checker_at(tmp_path) as checker:
        with pytest.raises(DrainCheckError, match="counted to chunk 41, needed is 42"):
            await checker.drained(query(1, at_least_chunk=42))

        assert (await checker.drained(query(1, at_least_chunk=41))).drained == {1: 4}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b"certainly not json\n", "invalid", id="garbage"),
        pytest.param(b'{"type": "\xff"}\n', "invalid", id="not UTF-8"),
        pytest.param(b'{"type":"pong","id":1,"runs":0}\n', "invalid", id="another reply"),
        pytest.param(encode_line(DrainedResponse(id=7)), "invalid", id="another id"),
        pytest.param(encode_line(FailureResponse(id=0, error="no")), "failed", id="a request not understood"),
        pytest.param(encode_line(FailureResponse(id=1, error="no")), "failed", id="an error reply"),
        pytest.param(None, "unreachable", id="a closed connection"),
        pytest.param(b"half a line", "unreachable", id="half a line"),
    ],
)
async def test_any_other_reply_is_an_error_and_the_next_query_succeeds(service, tmp_path, line, reason):
    service.drained = frozenset({1})
    service.replacement_lines = [line]
    states, observer = [], RecordingObserver()
    async with checker_at(tmp_path, on_state=lambda *state: states.append(state[0]), observer=observer) as checker:
        with pytest.raises(DrainCheckError):
            await checker.drained(query(1))

        assert (await checker.drained(query(1))).drained == {1: 4}
    answered = line is not None and b'"failed","id":1,' in line
    assert states == (["ready"] if answered else ["degraded", "ready"])
    assert observer.of(events.DrainCheckFailed) == [events.DrainCheckFailed(reason=reason)]


async def test_no_answer_is_believed_while_the_own_process_does_not_run(service, tmp_path):
    states = []
    settings = {"pid": lambda: None, "on_state": lambda *state: states.append(state)}
    async with checker_at(tmp_path, **settings) as checker, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(checker.drained(query(1)))
        await until(lambda: states)
        asking.cancel()

    assert (states, service.connections) == ([("degraded", "the Spark process does not run")], 0)


async def test_a_hang_is_an_error_and_a_process_that_is_connected_and_answers_no_ping_is_not_ready(service, tmp_path):
    service.may_answer.clear()
    states, observer = [], RecordingObserver()
    settings = {"timeout_seconds": 0.05, "on_state": lambda *state: states.append(state[0]), "observer": observer}
    async with checker_at(tmp_path, **settings) as checker:
        with pytest.raises(DrainCheckError, match="no answer from"):
            await checker.drained(query(1))
        assert observer.of(events.DrainCheckFailed)[0] == events.DrainCheckFailed(reason="timed_out")
        await until(lambda: service.connections == 2)
        assert states == ["degraded"]
        service.may_answer.set()
        await until(lambda: states == ["degraded", "ready"])


async def test_a_process_that_counts_for_longer_than_the_limit_stays_ready_and_connected(service, tmp_path):
    service.counts = False
    states = []
    async with checker_at(tmp_path, timeout_seconds=0.5, on_state=lambda *state: states.append(state[0])) as checker:
        with pytest.raises(DrainCheckError, match="no answer from"):
            await checker.drained(query(1))
        await until(lambda: states)
        service.counts = True
        await checker.drained(query(1))

    assert (service.connections, states) == (1, ["ready"])


async def test_a_query_waits_for_a_process_that_is_still_starting_and_gives_it_the_whole_limit(tmp_path, monkeypatch):
    fake, limits, request = FakeDrainService(), set(), Connection.request
    fake.drained = frozenset({1})
    monkeypatch.setattr(Connection, "request", lambda *given: limits.add(given[-1]) or request(*given))
    degraded = asyncio.Event()
    settings = {"on_state": lambda state, reason: degraded.set()}
    async with checker_at(tmp_path, **settings) as checker, asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(checker.drained(query(1)))
        await degraded.wait()
        async with started(fake, tmp_path):
            assert (await waiting).drained == {1: 4}
    assert limits == {60.0}


@pytest.mark.virtual_time
async def test_a_process_that_has_ended_is_looked_for_every_second_without_a_query(tmp_path):
    """Queries wait for a minute, and those who ask pause for up to a quarter of an hour after failures."""
    observer = RecordingObserver()
    async with checker_at(tmp_path, timeout_seconds=60, observer=observer) as checker:
        with pytest.raises(DrainCheckError, match="no answer from"):
            await checker.drained(query(1))
        failed = len(observer.of(events.DrainCheckFailed))
        await asyncio.sleep(600)
        assert 600 <= len(observer.of(events.DrainCheckFailed)) - failed <= 1200


async def test_lost_log_lines_of_the_process_are_counted_with_the_own(service, tmp_path):
    take_lost_lines()
    service.lost_log_lines = 3
    async with checker_at(tmp_path) as checker:
        await checker.drained(query(1))
    assert 3 == take_lost_lines()


@pytest.mark.parametrize("connected", [True, False])
async def test_closing_fails_the_queries_in_flight(service, tmp_path, connected):
    service.may_answer.clear()
    states = []
    folder = tmp_path if connected else tmp_path / "nowhere"
    async with checker_at(folder, on_state=lambda *state: states.append(state[0])) as checker:
        waiting = asyncio.ensure_future(checker.drained(query(1)))
        await until(lambda: service.arrived.is_set() if connected else states)
    with pytest.raises(DrainCheckError, match="closed"):
        await waiting
    assert states == ([] if connected else ["degraded"])


def test_the_daemons_modules_import_no_spark():
    code = "import drain.checker.checker, drain.checker.supervisor, drain.spark.java, sys; print(any('pyspark' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
