"""The synchronous facade over a broker in memory and a leader with a script, in real time."""

import asyncio
import inspect
import math
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest

import headgate
from headgate import (
    ConfigError,
    HandlerFailedError,
    HeadgateError,
    NoLeaderError,
    RecordMetadata,
    RequestRejectedError,
    RetryPolicy,
    SegmentId,
)
from headgate.protocol.requests import LeaveConsumer, Record
from headgate.sync import Admin, Consumer, EventLoopThread, Producer
from tests.support.fakes.scripted_leader import TOPIC_ID, ScriptedCluster, ScriptedLeader, grant


@contextmanager
def running():
    """A loop in which a cluster and its leader live."""
    cluster = ScriptedCluster()
    with EventLoopThread() as loop:
        leader = ScriptedLeader(cluster, 0, 1)
        loop.run(leader.start())
        leader.grants = [grant()]
        try:
            yield loop, cluster, leader
        finally:
            loop.run(leader.transport.__aexit__(None, None, None))


def billing(loop: EventLoopThread, cluster: ScriptedCluster, **options) -> Consumer:
    return loop.open(Consumer, cluster.client("c"), topic="orders", subscription="billing", **options)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "headgate-sync"]


def test_records_are_sent_received_and_acknowledged_without_asyncio():
    with running() as (loop, cluster, _):
        with loop.open(Producer, cluster.client("p")) as producer:
            assert RecordMetadata(0, 0, duplicate=False, topic_id=TOPIC_ID) == producer.send_and_wait(
                "orders", b"key", b"0"
            )
            delivery = producer.send("orders", b"key", b"1")
            assert 1 == delivery.result(timeout_seconds=5).offset
            assert delivery.done()
            producer.flush()
        assert 2 == producer.metrics().committed_records == producer.close().committed_records

        with billing(loop, cluster) as consumer:
            first = next(iter(consumer))
            rest = consumer.get_many(10, timeout_seconds=5)
            assert [b"0", b"1"] == [record.value for record in (first, *rest)]
            assert [SegmentId(0)] == consumer.segments
            assert consumer.positions.startswith("positions-1.")
            consumer.acknowledge(rest[-1])
            assert consumer.caught_up()
            assert [] == list(consumer.until_caught_up())
            consumer.flush()
        assert [2] == [acknowledged.end_offset for acknowledged in cluster.acknowledged]
        with pytest.raises(HeadgateError, match="closed"):
            consumer.get_many()

    assert [] == threads()


def test_a_handler_runs_in_threads_and_sigterm_ends_the_run_gracefully():
    """Two keys at the same time: each waits for the other."""
    both, calls, granted = threading.Barrier(2, timeout=60), [], []

    def handle(record):
        both.wait()
        calls.append((record.value, threading.current_thread().name[:16]))
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with running() as (loop, cluster, _):
        cluster.store_records([Record(key, key + number, 1) for number in (b"0", b"1") for key in (b"a", b"b")])

        def note(segments):
            granted.append((segments, threading.current_thread().name[:7]))

        with billing(loop, cluster, on_granted=note) as consumer:
            report = consumer.run(handle, concurrency=2)
        assert (4, 0) == (report.handled, report.unhandled)
        assert {(value, "headgate-handler") for value in (b"a0", b"a1", b"b0", b"b1")} == set(calls)
        assert [([0], "asyncio")] == granted
        assert 4 == cluster.acknowledged[-1].end_offset
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


def test_another_event_loop_than_that_of_the_connection_is_refused_at_once():
    with running() as (loop, cluster, _):
        cluster.store_records([Record(b"key", b"0", 1)])
        shared = cluster.client("shared")
        loop.run(shared.__aenter__())
        producer, admin = headgate.Producer(shared), headgate.Admin(shared)
        consumer = headgate.Consumer(shared, topic="orders", subscription="billing")
        for each in (producer, admin, consumer):
            loop.run(each.__aenter__())
        record = loop.run(anext(consumer))
        loop.run(producer.send_and_wait("orders", b"key", b"1"))
        uses = [
            lambda: producer.send_many("orders", [b"key"], [b"2"]),
            lambda: consumer.acknowledge(record),
            lambda: admin.describe_topic("orders"),
            lambda: headgate.Admin(shared).__aenter__(),
        ]
        for use in [*uses, producer.flush, producer.close, consumer.__anext__, consumer.flush, consumer.close]:
            with pytest.raises(HeadgateError, match="in another event loop"):
                asyncio.run(asyncio.wait_for(use(), 5))
        for each in (consumer, admin, producer, shared):
            loop.run(each.__aexit__(None, None, None))


@pytest.mark.parametrize(
    ("result", "text"), [(StopIteration(), "raised StopIteration"), (asyncio.sleep, "define it with async def")]
)
def test_a_handler_that_no_thread_can_call_has_failed(result, text):
    def handle(_record):
        if isinstance(result, Exception):
            raise result
        return result(0)

    with running() as (loop, cluster, _):
        cluster.store_records([Record(b"key", b"0", 1)])
        with billing(loop, cluster) as consumer, pytest.raises(HandlerFailedError, match=text):
            consumer.run(handle, retry=RetryPolicy(attempts=1))


SELF_WAITS = {
    "thread: close: it would wait": lambda consumer, _: consumer.close(),
    "thread: close: it would wait for the": lambda _, loop: loop.close(),
    "coroutine: close: it would wait": lambda consumer, _: consumer.close(),
    "coroutine: a coroutine in the event loop": lambda consumer, _: consumer.flush(),
}


@pytest.mark.parametrize("case", SELF_WAITS)
def test_a_handler_that_would_wait_for_itself_fails_at_once_and_the_consumer_can_be_closed(case):
    kind, _, text = case.partition(": ")

    def handle(_record):
        SELF_WAITS[case](consumer, loop)

    async def handle_in_loop(_record):
        SELF_WAITS[case](consumer, loop)

    with running() as (loop, cluster, leader):
        cluster.store_records([Record(b"key", b"0", 1)])
        with billing(loop, cluster) as consumer, pytest.raises(HandlerFailedError, match=text):
            consumer.run(handle if kind == "thread" else handle_in_loop, retry=RetryPolicy(attempts=1))
        assert 1 == len(leader.seen(LeaveConsumer))


@pytest.mark.parametrize(
    ("where", "error", "end"), [("handler", SystemExit, 1), ("callback", HeadgateError, 0)], ids=["handler", "callback"]
)
def test_an_exit_ends_the_run_and_not_the_event_loop(where: str, error: type[BaseException], end: int):
    """What was handled is acknowledged."""

    def granted(_segments):
        if where == "callback":
            sys.exit(3)

    def handle(record):
        if record.value == b"1":
            sys.exit(3)

    with running() as (loop, cluster, _):
        cluster.store_records([Record(b"key", b"0", 1), Record(b"key", b"1", 1)])
        with pytest.raises(error, match="3"), billing(loop, cluster, on_granted=granted) as consumer:
            consumer.run(handle, retry=RetryPolicy(then="skip"))
        assert end == max((each.end_offset for each in cluster.acknowledged), default=0)


def test_errors_of_the_asyncio_client_arrive_as_they_are():
    with running() as (loop, cluster, leader):
        with loop.open(Admin, cluster.client("a")) as admin:
            assert "orders" == admin.create_topic("orders", segments=2).topic
            assert [] == admin.list_topics()
            with pytest.raises(ConfigError, match="exactly one"):
                admin.seek("orders", "billing")
        with loop.open(Producer, cluster.client("p")) as producer:
            leader.script.append("invalid")
            with pytest.raises(RequestRejectedError, match="scripted invalid"):
                producer.send("orders", b"key", b"0").result()
            leader.script.append("drop")
            unanswered = producer.send("orders", b"key", b"1")
            with pytest.raises(TimeoutError):
                unanswered.result(timeout_seconds=0.1)
            producer.close(timeout_seconds=0)
            with pytest.raises(HeadgateError, match="closed"):
                producer.send("orders", b"key", b"2")


async def test_a_thread_that_runs_an_event_loop_can_use_the_facade():
    """A notebook does; its own loop must neither break the clean-up nor be replaced."""
    own = asyncio.get_running_loop()
    with running() as (loop, cluster, _), loop.open(Producer, cluster.client("p")) as producer:
        assert 0 == producer.send_and_wait("orders", b"key", b"0").offset

    assert own is asyncio.get_event_loop_policy().get_event_loop()
    assert [] == threads()


def test_an_exception_in_the_block_discards_what_is_pending_and_is_raised():
    with running() as (loop, cluster, leader):
        leader.script.append("drop")
        with pytest.raises(ZeroDivisionError), loop.open(Producer, cluster.client("p")) as producer:  # noqa: PT012
            producer.send("orders", b"key", b"0")
            1 / 0  # noqa: B018
        assert 0 == producer.metrics().committed_records


def test_an_object_that_cannot_connect_leaves_no_thread_behind(monkeypatch):
    with pytest.raises(NoLeaderError, match="is it running"):
        Admin(ScriptedCluster().client("a"), timeout_seconds=0.1)
    monkeypatch.setattr(threading, "main_thread", threading.Thread)  # which has not begun, so it does not run either
    with pytest.raises(HeadgateError, match="main thread has ended"):
        Admin(ScriptedCluster().client("a"))
    assert [] == threads()


def test_time_outs_are_passed_on_and_checked():
    for create in (
        lambda cluster: Producer(cluster.client("a"), connect_timeout_seconds=math.nan),
        lambda cluster: Consumer(cluster.client("a"), topic="t", subscription="s", connect_timeout_seconds=math.nan),
        lambda cluster: Admin(cluster.client("a"), timeout_seconds=math.nan),
    ):
        with pytest.raises(ConfigError, match="timeout_seconds=nan: use"):
            create(ScriptedCluster())
    assert [] == threads()


def test_an_interrupted_call_is_cancelled(request: pytest.FixtureRequest):
    """Ctrl-C raises in the thread that waits; the coroutine must not continue without it."""
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def interrupted() -> int:
        await asyncio.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        return 7

    # A process in the background starts with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    main = threading.main_thread().ident
    ctrl_c = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    with EventLoopThread() as loop:
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            loop.run(wait())
        assert cancelled.wait(5)
        assert 7 == loop.run(interrupted()), "a record that was delivered would be lost"
        with pytest.raises(KeyboardInterrupt):
            loop.run(wait())
    with pytest.raises(HeadgateError, match="closed"):
        loop.run(wait())


def test_a_call_that_begins_while_another_thread_closes_ends(monkeypatch):
    loop, submit = EventLoopThread(), asyncio.run_coroutine_threadsafe
    closing = threading.Thread(target=loop.close)

    def beside(coroutine, running):
        closing.start()
        closing.join(0.1)  # It waits for the call.
        return submit(coroutine, running)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", beside)
    with pytest.raises(CancelledError):
        loop.run(asyncio.Event().wait())
    closing.join()
    loop.call_soon(int)


def test_every_call_in_a_forked_child_says_that_the_object_belongs_to_its_parent():
    """Celery and `gunicorn --preload` fork after the program has created its clients."""
    program = """
import os
import sys
from headgate import HeadgateError
from headgate.sync import Admin, Consumer, EventLoopThread, Producer
from tests.support.fakes.scripted_leader import ScriptedCluster, ScriptedLeader
cluster, loop = ScriptedCluster(), EventLoopThread()
loop.run(ScriptedLeader(cluster, 0, 1).start())
admin, producer = loop.open(Admin, cluster.client("a")), loop.open(Producer, cluster.client("p"))
consumer = loop.open(Consumer, cluster.client("c"), topic="orders", subscription="billing")
delivery = producer.send("orders", b"key", b"0")
calls = (
    admin.list_topics, admin.close, lambda: producer.send("orders", b"key", b"1"), producer.flush, producer.metrics,
    producer.close, lambda: producer.source_position, delivery.done, delivery.result, consumer.get_many,
    lambda: next(consumer), lambda: consumer.positions, lambda: consumer.segments, consumer.close, loop.close,
)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for call in calls:
    try:
        call()
    except HeadgateError as error:
        print("create it after the fork" in str(error), flush=True)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]  # Python 3.12 warns of any such fork.
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (0, ["True"] * 15, "") == (found.returncode, found.stdout.splitlines(), found.stderr)


@pytest.mark.parametrize(
    ("blocking", "coroutines"), [(Producer, headgate.Producer), (Consumer, headgate.Consumer), (Admin, headgate.Admin)]
)
def test_every_public_coroutine_has_a_blocking_counterpart(blocking, coroutines):
    wanted = {
        name for name, _ in inspect.getmembers(coroutines, inspect.iscoroutinefunction) if not name.startswith("_")
    }
    offered = {name for name, member in inspect.getmembers(blocking, inspect.isfunction) if not name.startswith("_")}
    assert wanted <= offered
    assert not any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(blocking))
