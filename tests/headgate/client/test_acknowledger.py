"""When acknowledgements are sent, and what becomes of those that the leader does not store."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator

import pytest

from headgate.client.consuming.acknowledger import MAX_PENDING_RANGES, Acknowledger
from headgate.client.decisions.unstored_acknowledgements import AcknowledgementBatch
from headgate.errors import AcknowledgementsNotStoredError, NoLeaderError, RequestRejectedError
from headgate.log.event_log import get_logger
from headgate.model.entries import SubscriptionType
from headgate.protocol.replies import Acknowledged
from headgate.protocol.requests import Acknowledgement

INTERVAL_SECONDS = 2.0
HELD = (0, 1)
FORBIDDEN = RequestRejectedError("forbidden", "user ada may not consume")

Reply = Acknowledged | Exception


class Harness:
    """An acknowledger, and the leader's replies to it: those of ``script``, else it stores everything."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.script: list[Reply] = []
        self.sent: list[tuple[float, list[Acknowledgement]]] = []
        self.checkpoints: list[dict[int, str]] = []
        self.numbers: list[int] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.acknowledger = Acknowledger(
            self._send, kind, draw=lambda: 1.0, log=get_logger("headgate.test"), interval_seconds=INTERVAL_SECONDS
        )
        self.acknowledger.unstored.begin(HELD, 0)

    async def _send(self, batch: AcknowledgementBatch, number: int) -> Acknowledged:
        self.sent.append((asyncio.get_running_loop().time(), batch.acknowledgements))
        self.checkpoints.append(batch.checkpoints)
        self.numbers.append(number)
        await self.answers.wait()
        reply = self.script.pop(0) if self.script else Acknowledged()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def acknowledge(self, *offsets: int) -> None:
        for offset in offsets:
            self.acknowledger.acknowledge(HELD, offset, offset + 1)

    def ranges(self) -> list[list[tuple[int, int]]]:
        return [[(each.first_offset, each.end_offset) for each in batch] for _, batch in self.sent]


async def running(kind: SubscriptionType) -> AsyncIterator[Harness]:
    harness = Harness(kind)
    task = asyncio.create_task(harness.acknowledger.run())
    yield harness
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def stream() -> AsyncIterator[Harness]:
    async for harness in running(SubscriptionType.STREAM):
        yield harness


@pytest.fixture
async def queue() -> AsyncIterator[Harness]:
    async for harness in running(SubscriptionType.QUEUE):
        yield harness


# Sending


async def test_acknowledgements_are_collected_for_the_interval_and_then_sent_once(queue: Harness) -> None:
    queue.acknowledge(7, 3)
    await asyncio.sleep(INTERVAL_SECONDS - 0.01)
    queue.acknowledge(4)
    assert [] == queue.sent
    await asyncio.sleep(10 * INTERVAL_SECONDS)

    assert [[(3, 5), (7, 8)]] == queue.ranges()
    assert (queue.acknowledger.unstored.stored, queue.acknowledger.unstored.late) == (3, 0)


async def test_a_thousand_acknowledgements_are_sent_at_once_and_the_next_thousand_too(queue: Harness) -> None:
    for first in (0, 1000):
        queue.acknowledge(*range(first, first + 1000))
        await asyncio.sleep(0.01)

    assert [[(0, 1000)], [(1000, 2000)]] == queue.ranges()


async def test_one_batch_is_in_flight_and_the_next_one_has_what_came_meanwhile(stream: Harness) -> None:
    stream.answers.clear()
    for offset in range(3):
        stream.acknowledge(offset)
        await asyncio.sleep(INTERVAL_SECONDS)
    assert [[(0, 1)]] == stream.ranges()
    stream.answers.set()
    await asyncio.sleep(0.01)

    assert [[(0, 1)], [(1, 3)]] == stream.ranges()
    assert [1, 2] == stream.numbers


async def test_a_consumer_that_has_failed_waits_for_no_capacity(queue: Harness) -> None:
    queue.answers.clear()
    queue.acknowledge(*range(0, 2 * MAX_PENDING_RANGES + 4000, 2))
    waiting = asyncio.create_task(queue.acknowledger.wait_for_capacity())
    await asyncio.sleep(1)
    queue.acknowledger.stop()

    await asyncio.wait_for(waiting, 1)


@pytest.mark.parametrize("refusal", [FORBIDDEN, NoLeaderError("no reply")], ids=["forbidden", "no leader"])
async def test_what_was_refused_is_sent_again_with_what_came_since_after_growing_pauses(
    refusal: Exception, stream: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    stream.script += [refusal] * 4
    stream.acknowledge(4)
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.acknowledge(9)
    await asyncio.sleep(60)

    assert [[(0, 5)], *[[(0, 10)]] * 4] == stream.ranges()
    times = [at for at, _ in stream.sent]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert (stream.acknowledger.unstored.stored, stream.acknowledger.unstored.late) == (10, 0)
    assert 1 == caplog.text.count("acknowledgements.refused"), "once for all of them"


async def test_a_rejected_range_is_sent_again_and_does_not_delay_the_others(queue: Harness) -> None:
    """A QUEUE at its limit of ranges accepts one more once a gap is filled."""
    queue.script += [Acknowledged(rejected=[(1, "too many ranges")])] * 2
    queue.acknowledge(0, 5)
    await asyncio.sleep(INTERVAL_SECONDS + 0.01)
    assert 1 == queue.acknowledger.unstored.stored
    queue.acknowledge(*range(7, 1007))
    await asyncio.sleep(0.01)
    assert [(7, 1007)] == queue.ranges()[1], "without a pause"
    queue.script.clear()
    await asyncio.sleep(60)

    assert [(5, 6)] in queue.ranges()[2:]
    await queue.acknowledger.flush(1)


async def test_what_is_rejected_because_the_segment_has_moved_ends_with_the_segment(stream: Harness, caplog) -> None:
    caplog.set_level(logging.INFO, "headgate")
    stream.script += [Acknowledged(rejected=[(0, "held by 'b'")])] * 99
    stream.acknowledge(4)
    await asyncio.sleep(INTERVAL_SECONDS + 0.01)
    assert 0 == stream.acknowledger.unstored.late, "this consumer has not heard that it lost the segment"
    stream.acknowledger.end(HELD)
    sent = len(stream.sent)
    stream.acknowledge(5)
    await asyncio.sleep(60)

    assert (6, sent) == (stream.acknowledger.unstored.late, len(stream.sent))
    assert "held by 'b'" in caplog.text
    await stream.acknowledger.flush(1)


# Flushing


async def test_a_flush_sends_at_once_and_waits_for_what_was_acknowledged_before_it(stream: Harness) -> None:
    stream.answers.clear()
    stream.acknowledge(4)
    flushed = asyncio.create_task(stream.acknowledger.flush(60))
    await asyncio.sleep(0.001)
    assert [[(0, 5)]] == stream.ranges()
    stream.acknowledge(5)
    assert not flushed.done()
    stream.script += [Acknowledged(), *[FORBIDDEN] * 9]
    stream.answers.set()
    await asyncio.sleep(0.001)

    await asyncio.wait_for(flushed, 0)


async def test_a_flush_waits_for_the_reply_that_counts_what_was_late(stream: Harness) -> None:
    stream.answers.clear()
    stream.script = [Acknowledged(rejected=[(0, "held by 'b'")])]
    stream.acknowledge(1)
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.acknowledger.end(HELD)
    asyncio.get_running_loop().call_later(10, stream.answers.set)
    await stream.acknowledger.flush(30)

    assert stream.acknowledger.unstored.late == 2


async def test_a_flush_names_what_is_not_stored_in_time_and_why_and_a_later_one_succeeds(stream: Harness) -> None:
    stream.acknowledger.unstored.begin((7, 2), 40)
    stream.acknowledge(4)
    stream.acknowledger.acknowledge((7, 2), 41, 42)
    stream.script += [FORBIDDEN] * 9
    with pytest.raises(AcknowledgementsNotStoredError, match=r"segment 7: offsets 40 to 41.*user ada") as raised:
        await stream.acknowledger.flush(3)
    stream.script.clear()
    await stream.acknowledger.flush(10)

    assert raised.value.offsets == {0: ((0, 5),), 7: ((40, 42),)}
    assert (stream.acknowledger.unstored.stored, stream.acknowledger.unstored.late) == (7, 0)


async def test_what_was_given_up_is_reported_once_by_the_next_flush(stream: Harness, caplog: pytest.LogCaptureFixture):
    stream.script += [FORBIDDEN] * 99
    stream.acknowledge(4)
    await asyncio.sleep(INTERVAL_SECONDS + 0.01)
    stream.acknowledger.give_up(HELD)
    with pytest.raises(AcknowledgementsNotStoredError, match=r"segment 0: offsets 0 to 4.*user ada") as raised:
        await stream.acknowledger.flush(1)

    assert raised.value.offsets == {0: ((0, 5),)}
    assert "acknowledgements.not_stored" in caplog.text
    await stream.acknowledger.flush(1)


async def test_the_newest_checkpoint_of_a_segment_is_sent_until_it_is_stored(stream: Harness) -> None:
    stream.script.append(FORBIDDEN)
    for checkpoint in ("a", "b", None):
        stream.acknowledger.acknowledge(HELD, 0, 0, checkpoint)
    await asyncio.sleep(INTERVAL_SECONDS + 1)
    stream.acknowledger.acknowledge(HELD, 0, 1)
    await asyncio.sleep(INTERVAL_SECONDS + 1)

    assert [{0: "b"}, {0: "b"}, {}] == stream.checkpoints
    assert [[(0, 0)], [(0, 0)], [(0, 1)]] == stream.ranges()


async def test_a_checkpoint_that_is_not_stored_is_named(stream: Harness) -> None:
    stream.script += [FORBIDDEN] * 9
    stream.acknowledger.acknowledge(HELD, 0, 0, "a")
    with pytest.raises(AcknowledgementsNotStoredError, match="segment 0: its checkpoint") as raised:
        await stream.acknowledger.flush(1)

    assert raised.value.offsets == {0: ()}
