"""`Consumer.run` and the callbacks of segments, with a scripted leader, in virtual time."""

import asyncio
import os
import signal
from collections import defaultdict
from contextlib import asynccontextmanager, suppress

import pytest

from headgate import BucketRange, ConsumedRecord, LookAhead, RetryPolicy
from headgate.client.processing.runner import Workers
from headgate.errors import AcknowledgementsNotStoredError, ConfigError, FencedError, HandlerFailedError, HeadgateError
from headgate.model.layout import segment_hash
from headgate.model.positions import decode_positions
from headgate.protocol.replies import Revocation
from headgate.protocol.requests import ConfirmRevoked, LeaveConsumer, Record
from tests.support.fakes.scripted_leader import ScriptedCluster, acknowledged, consumer, grant, registration
from tests.support.waiting import until

ONCE = RetryPolicy(attempts=1)
WRONG_ARGUMENTS = [
    ({"concurrency": 0}, "concurrency=0 has to be 1 or more"),
    ({"concurrency": 1.5}, r"concurrency=1\.5 has to be an integer"),
    ({"stop_seconds": None}, "stop_seconds=None: use 0 to"),
    ({"retry": None}, "retry=None is of type NoneType: use a RetryPolicy"),
    ({"batch": 100}, "batch=100 is of type int: use a BatchPolicy"),
    ({"look_ahead": "far"}, "look_ahead='far' is of type str: use a LookAhead"),
    ({"handler": "handle"}, "^run: handler='handle': use a function"),
]


def keyed(*keys: str) -> list[Record]:
    """Return records whose values count those of their key."""
    counts: dict[str, int] = defaultdict(int)
    found = []
    for key in keys:
        found.append(Record(key.encode(), b"%s%d" % (key.encode(), counts[key]), 1))
        counts[key] += 1
    return found


class Handler:
    """Notes its calls; records whose value is in ``pauses`` take as long, and those in ``errors`` fail so often."""

    def __init__(self, pauses: dict[str, float] | None = None, errors: dict[str, int] | None = None) -> None:
        self.pauses, self.errors = pauses or {}, errors or {}
        self.begun: list[str] = []
        self.done: list[str] = []
        self.records: list[ConsumedRecord] = []
        self.at_once = self.most = 0

    async def __call__(self, record) -> None:
        value = record.value.decode()
        self.records.append(record)
        self.begun.append(value)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(self.pauses.get(value, 0.01))
            if self.errors.get(value, 0) > 0:
                self.errors[value] -= 1
                raise ValueError(value)
        finally:
            self.at_once -= 1
        self.done.append(value)


@asynccontextmanager
async def running(reader, handler, **options):
    """Run during the block, and wait for the end."""
    task = asyncio.create_task(reader.run(handler, **options))
    try:
        yield task
    finally:
        reader.stop()
        with suppress(HeadgateError, asyncio.CancelledError):
            await task


async def test_keys_are_handled_in_parallel_and_each_in_order_and_a_stuck_one_holds_only_itself(cluster):
    cluster.store_records(keyed(*"abababcdcdcd"))
    handler = Handler({"a0": 1000})
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader, running(reader, handler, concurrency=3):
        await until(lambda: len(handler.done) == 9)
        assert 3 == handler.most
        assert {"a0"} == set(handler.begun) - set(handler.done)
        for key in "bcd":
            assert [f"{key}{n}" for n in range(3)] == [each for each in handler.done if each[0] == key]
        await asyncio.sleep(1)
        assert [] == acknowledged(cluster), "the first record is not handled"


async def test_handlers_that_never_wait_let_the_program_do_other_work_after_a_hundredth_of_a_second() -> None:
    workers = Workers(asyncio.Event().wait, lambda _: None)
    asked = [workers.should_pause(at) for at in (5.0, 5.01, 5.02)]
    await asyncio.sleep(0)
    assert [False, False, True, False] == [*asked, workers.should_pause(5.03)]


async def test_handlers_continue_while_many_records_are_taken(cluster):
    cluster.store_records(keyed(*map(str, range(200))))
    left: list[int] = []

    async def handle(_: ConsumedRecord) -> None:
        left.append(reader._feed.queue.records)

    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader, running(reader, handle):
        await until(lambda: len(left) == 200)
    assert left[0] > 0


@pytest.mark.parametrize(
    ("kind", "stored", "position"), [("STREAM", [(0, 1)], 3), ("QUEUE", [(0, 1), (2, 3)], 3), ("CHECKPOINT", [], 1)]
)
async def test_what_is_handled_is_acknowledged_or_moves_the_position(kind, stored, position, cluster):
    cluster.store_records(keyed(*"abc"))
    handler = Handler({"a0": 1, "b0": 5, "c0": 1})
    async with cluster.leader(grants=[grant()]), consumer(cluster, type=kind) as reader:
        task = asyncio.create_task(reader.run(handler, concurrency=3, until_caught_up=True))
        await until(lambda: handler.at_once == 3)
        assert kind != "CHECKPOINT" or {0: 0} == decode_positions(reader.positions).positions
        await until(lambda: len(handler.done) == 2)
        await asyncio.sleep(0.5)
        assert stored == [(a.first_offset, a.end_offset) for a in cluster.acknowledged]
        assert position == decode_positions(reader.positions).positions[0]
        with pytest.raises(HeadgateError, match=r"run\(\) acknowledges|does not acknowledge"):
            await reader.acknowledge(handler.records[1])
        report = await task
        assert (3, 0, 0, 0) == (report.handled, report.retried, report.skipped, report.unhandled)
        assert {0: 3} == decode_positions(reader.positions).positions
        cluster.store_records(keyed("d"))
        assert b"d0" == (await anext(reader)).value, "it can be read on, because everything is handled"


async def test_a_segment_at_its_share_of_the_look_ahead_waits_and_the_others_continue():
    cluster = ScriptedCluster(segments=2)
    keys = [f"{n}" for n in range(2600)]
    cluster.store_records([Record(key.encode(), key.encode(), 1) for key in keys])
    here, there = ([key for key in keys if segment_hash(key.encode()) // 0x8000 == segment] for segment in (0, 1))
    handler = Handler({here[0]: 500})
    async with (
        cluster.leader(grants=[grant(0), grant(1)]),
        consumer(cluster) as reader,
        running(reader, handler, concurrency=2, look_ahead=LookAhead(max_records=20)),
    ):
        await until(lambda: len(there) <= len(handler.done) and set(there) <= set(handler.done))
        assert 1270 > len(set(here) & set(handler.begun)), "ten, those that were queued before, and a run"
        await until(lambda: len(keys) == len(handler.done), 600)
        assert set(keys) == set(handler.done)
        await asyncio.sleep(0.3)
        assert {(0, 1, len(here)), (1, 1, len(there))} <= set(acknowledged(cluster))


async def test_a_record_that_fails_for_good_ends_the_run_with_its_name_and_is_not_acknowledged(cluster):
    cluster.store_records(keyed(*"abac"))
    handler = Handler({"b0": 3}, errors={"a0": 9})
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        with pytest.raises(
            HandlerFailedError, match=r"orders in segment 0 at offset 0, key b'a', in attempt 2"
        ) as raised:
            await reader.run(handler, concurrency=3, retry=RetryPolicy(attempts=2))
        assert isinstance(raised.value.__cause__, ValueError)
        assert [b"a0"] == [record.value for record in raised.value.records]
        assert "b0" in handler.done, "what was at work ends"
        assert "a1" not in handler.begun, "the order of a key holds"
        assert [] == [record async for record in reader], "a later acknowledgement would include the failed record"
    assert [] == acknowledged(cluster)


async def test_a_record_that_is_skipped_is_counted_and_acknowledged(cluster, caplog):
    cluster.store_records(keyed(*"ab"))
    handler = Handler(errors={"a0": 9})
    policy = RetryPolicy(exceptions=(OSError,), then="skip")
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        report = await reader.run(handler, retry=policy, until_caught_up=True)
        assert ["a0", "b0"] == handler.begun, "no retry after an exception that is not named"
        assert (1, 0, 1) == (report.handled, report.retried, report.skipped)
        assert (0, 1, 2) == acknowledged(cluster)[-1]
    assert "run.skipped" in caplog.text


@pytest.mark.parametrize(
    ("error", "raised"), [(asyncio.CancelledError, HandlerFailedError), (GeneratorExit, GeneratorExit)]
)
async def test_a_handler_that_cancels_itself_has_failed_and_the_run_ends_at_once(error, raised, cluster):
    cluster.store_records(keyed("a"))

    async def handle(_record) -> None:
        raise error("by the handler")

    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader, asyncio.timeout(1):
        with pytest.raises(raised, match="by the handler"):
            await reader.run(handle, retry=ONCE)


WAITS = {
    "close: it would wait": lambda reader: reader.close(),
    "run: this consumer runs": lambda reader: reader.run(Handler()),
    "get_many: this consumer runs": lambda reader: reader.get_many(timeout_seconds=1000),
    "the iteration: this consumer runs": anext,
    "until_caught_up: this consumer runs": lambda reader: anext(reader.until_caught_up()),
}


@pytest.mark.parametrize("text", WAITS)
async def test_a_handler_that_would_wait_for_itself_fails_at_once_and_the_consumer_can_be_closed(text, cluster):
    cluster.store_records(keyed("a"))

    async def handle(_record) -> None:
        await reader.flush()
        await WAITS[text](reader)

    async with cluster.leader(grants=[grant()]) as leader, asyncio.timeout(2):
        async with consumer(cluster) as reader:
            with pytest.raises(HandlerFailedError, match=text):
                await reader.run(handle, retry=ONCE)
        assert 1 == len(leader.seen(LeaveConsumer))


@pytest.mark.parametrize("callback", ["on_granted", "on_revoked"])
async def test_a_callback_that_would_wait_for_itself_ends_its_consumer_at_once(callback, cluster):
    async def close(*_) -> None:
        await reader.close()

    async with (
        cluster.leader(grants=[grant()]) as leader,
        asyncio.timeout(3),
        consumer(cluster, **{callback: close}) as reader,
    ):
        leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
        with pytest.raises(HeadgateError, match="close: it would wait for the handler or callback"):
            await anext(reader)


async def test_arguments_of_a_run_make_sense(cluster):
    with pytest.raises(HeadgateError, match="is not open"):
        await consumer(cluster).run(Handler(), until_caught_up=True)
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        for wrong, text in WRONG_ARGUMENTS:
            with pytest.raises(ConfigError, match=text):
                await reader.run(**{"handler": Handler(), **wrong})
    for exceptions in (None, [ValueError]):
        with pytest.raises(ConfigError, match=r"exceptions=.*: use a tuple of exceptions"):
            RetryPolicy(exceptions=exceptions)


def sigterm(_reader, _task) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


ENDS = {"stop": lambda reader, _: reader.stop(), "cancelled": lambda _, task: task.cancel(), "SIGTERM": sigterm}


@pytest.mark.parametrize("end", ENDS)
async def test_a_run_that_is_ended_begins_nothing_and_acknowledges_what_is_at_work(end, cluster):
    cluster.store_records(keyed(*"aabbcc"))
    handler = Handler(dict.fromkeys(["a0", "b0"], 5))
    async with cluster.leader(grants=[grant()]) as leader:
        async with consumer(cluster) as reader:
            task = asyncio.create_task(reader.run(handler, concurrency=2))
            await until(lambda: handler.at_once == 2)
            ENDS[end](reader, task)
            await asyncio.wait([task])
            assert task.cancelled() == (end == "cancelled")
            assert ["a0", "a1", "b0"] == sorted(handler.done), "below the last one that was begun nothing is left out"
        assert (0, 1, 3) == acknowledged(cluster)[-1]
        assert 1 == len(leader.seen(LeaveConsumer))
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


async def test_handlers_that_do_not_end_in_time_are_cancelled(cluster):
    cluster.store_records(keyed("a"))
    handler = Handler({"a0": 1000})
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        task = asyncio.create_task(reader.run(handler, stop_seconds=3))
        await until(lambda: handler.at_once == 1)
        began = asyncio.get_running_loop().time()
        await reader.close()
        assert 0 == handler.at_once
        assert 3 <= asyncio.get_running_loop().time() - began < 5
        assert 1 == (await task).unhandled
    assert [] == acknowledged(cluster)


async def test_a_program_that_handles_sigterm_itself_keeps_its_handler(cluster):
    mine = lambda *_: None  # noqa: E731 - a handler without a name of its own
    before = signal.signal(signal.SIGTERM, mine)
    try:
        async with cluster.leader(grants=[grant()]), consumer(cluster) as reader, running(reader, Handler()):
            await asyncio.sleep(1)
            assert mine is signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_revocation_waits_for_what_was_begun_gives_back_the_rest_and_is_confirmed(cluster):
    cluster.store_records(keyed(*"abcdef"))
    handler = Handler({"a0": 5, "b0": 4})
    async with (
        cluster.leader(grants=[grant()]) as leader,
        consumer(cluster) as reader,
        running(reader, handler, concurrency=2),
    ):
        await until(lambda: handler.at_once == 2)
        leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
        await until(lambda: leader.seen(ConfirmRevoked), 10)
        assert ["b0", "a0"] == handler.done
        assert [(0, 1, 2)] == acknowledged(cluster)
        leader.push(registration(leader), granted=[grant(generation=2, start_offset=2)])
        await until(lambda: len(handler.done) == 6)


async def test_what_a_former_holder_finishes_has_no_effect_and_its_failure_neither(cluster):
    cluster.store_records(keyed(*"ab"))
    handler = Handler({"a0": 60, "b0": 60}, errors={"b0": 1})
    revoked = Revocation(segment=0, generation=1)
    async with (
        cluster.leader(grants=[grant()]) as leader,
        consumer(cluster) as reader,
        running(reader, handler, concurrency=2, retry=ONCE) as task,
    ):
        await until(lambda: handler.at_once == 2)
        leader.push(registration(leader), revoked=[revoked])
        await until(lambda: leader.seen(ConfirmRevoked))
        assert 2 == handler.at_once, "its time was up"
        leader.push(registration(leader), granted=[grant(generation=2)])
        await until(lambda: len(handler.begun) == 4)
        assert 2 == handler.at_once, "a key is handled once at a time, under any grant"
        assert [] == acknowledged(cluster)
        await until(lambda: len(handler.done) == 3)
        await asyncio.sleep(1)
        assert not task.done()
        assert [(0, 2, 2)] == acknowledged(cluster)


@pytest.mark.parametrize("stopped", [True, False])
async def test_no_handler_begins_after_the_lease_until_a_registration(stopped, cluster):
    handler = Handler({"a0": 40})
    cluster.store_records(keyed(*"aaabb"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        leader.answers = False
        async with running(reader, handler) as run:
            await asyncio.sleep(50)
            assert ["a0"] == handler.done, "it was at work"
            assert ["a0"] == handler.begun
            if stopped:
                reader.stop()
                with pytest.raises(AcknowledgementsNotStoredError, match=r"segment 0: offsets 0\)"):
                    await asyncio.wait_for(run, 31)
            leader.answers = True
            await until(lambda: [(0, 1, 1 if stopped else 5)] == acknowledged(cluster)[-1:])


async def test_a_fenced_consumer_ends_its_run(cluster):
    cluster.store_records(keyed("a"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        task = asyncio.create_task(reader.run(Handler()))
        await asyncio.sleep(1)
        leader.refused["RegisterConsumer"] = "fenced"
        leader.push_fenced(registration(leader), "a newer program")
        with pytest.raises(FencedError):
            await task


class Callbacks:
    """Notes its calls, in order with the handler's records."""

    def __init__(self, pause_seconds: float = 0.0, seen: list | None = None) -> None:
        self.pause_seconds = pause_seconds
        self.seen = [] if seen is None else seen

    async def granted(self, segments) -> None:
        await asyncio.sleep(self.pause_seconds)
        self.seen.append(("granted", segments))

    async def revoked(self, segments, seconds_left) -> None:
        self.seen.append(("revoked", segments, round(seconds_left)))
        await asyncio.sleep(self.pause_seconds)

    @property
    def options(self) -> dict:
        return {"on_granted": self.granted, "on_revoked": self.revoked}


async def test_callbacks_frame_what_is_handled_of_a_segment(cluster):
    cluster.store_records(keyed(*"ab"))
    handler = Handler({"a0": 1, "b0": 4})
    callbacks = Callbacks(2.0, handler.done)
    lost, half = Revocation(segment=0, generation=2, final=True), BucketRange(0, 0, 8)
    async with (
        cluster.leader(grants=[grant()]) as leader,
        consumer(cluster, **callbacks.options) as reader,
        running(reader, handler, concurrency=2),
    ):
        await until(lambda: handler.at_once == 2)
        leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
        await until(lambda: leader.seen(ConfirmRevoked))
        assert [("granted", [0]), "a0", "b0", ("revoked", [0], 16)] == handler.done
        leader.push(registration(leader), granted=[grant(generation=2, start_offset=2, first_bucket=0, end_bucket=8)])
        leader.push(registration(leader), revoked=[lost])
        leader.push(registration(leader), granted=[grant(0, 3, 2), grant(1, 4)])
        await until(lambda: len(handler.done) == 7)
        assert [("granted", [half]), ("revoked", [half], 0), ("granted", [0, 1])] == handler.done[4:7]
        await asyncio.sleep(5)
    assert ("revoked", [0, 1], 20) == handler.done[-1]


async def test_a_segment_that_goes_while_it_is_announced_is_said_to_be_gone_afterwards(cluster):
    callbacks = Callbacks(20.0)
    lost = Revocation(segment=0, generation=1, final=True)
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster, **callbacks.options):
        leader.push(registration(leader), revoked=[lost])
        await until(lambda: len(callbacks.seen) == 2)
    assert [("granted", [0]), ("revoked", [0], 0)] == callbacks.seen


@pytest.mark.parametrize("closes", [False, True])
async def test_without_a_run_a_revocation_comes_before_the_acknowledgements_that_it_waits_for(closes, cluster):
    """A program that collects results acknowledges when it has stored them."""
    cluster.store_records(keyed(*"ab"))
    found = []

    async def revoked(_segments, _seconds_left) -> None:
        await reader.acknowledge(found[-1])

    async with cluster.leader(grants=[grant()]) as leader, asyncio.timeout(5):
        async with consumer(cluster, on_revoked=revoked) as reader:
            found += [await anext(reader), await anext(reader)]
            if not closes:
                leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
                await until(lambda: leader.seen(ConfirmRevoked), 1)
        assert [(0, 1, 2)] == acknowledged(cluster)


async def test_a_callback_that_raises_ends_the_consumer_before_anything_is_read(cluster):
    cluster.store_records(keyed("a"))

    async def granted(_segments) -> None:
        raise ValueError("no state")

    async with cluster.leader(grants=[grant()]), consumer(cluster, on_granted=granted) as reader:
        with pytest.raises(HeadgateError, match="on-granted failed: ValueError"):
            await anext(reader)
