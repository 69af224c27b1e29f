"""What is collected into a batch of acknowledgements, when it is sent, and what follows from each outcome."""

from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.client.acknowledger import Acknowledger
from headgate.client.connection import Client
from headgate.client.decisions.session_types import Outcome
from headgate.event_log import LogEvent
from headgate.model.entries import SubscriptionType
from headgate.protocol import messages as m
from headgate.reading.known_history import KnownHistory
from tests.support.worlds.session_dialogue import Dialogue

pytestmark = pytest.mark.looptime

INTERVAL_SECONDS = 2.0


class Session:
    """A session that keeps the batches it is offered until the test ends them."""

    def __init__(self) -> None:
        self.ready_for_batch = True
        self.batches: list[Any] = []
        self.closed = False

    def offer(self, batch: Any) -> None:
        self.batches.append(batch)

    def close(self) -> None:
        self.closed = True

    def sent(self) -> list[list[m.Acknowledgement]]:
        return [batch.acknowledgements for batch in self.batches]

    def last_request(self) -> m.AcknowledgeBatch:
        request = self.batches[-1].request(producer_id=1, producer_epoch=2, sequence=3)
        assert isinstance(request, m.AcknowledgeBatch)
        return request


class Harness:
    """An acknowledger on such a session."""

    def __init__(self, kind: SubscriptionType = SubscriptionType.STREAM) -> None:
        self.fenced: list[str] = []
        client = SimpleNamespace(request_ids=itertools.count(1), client_id="c", new_token=lambda: "token")
        self.acknowledger = Acknowledger(
            cast("Client", client),
            0,
            topic="orders",
            subscription="billing",
            consumer="b-1",
            incarnation=4,
            kind=kind,
            interval_seconds=INTERVAL_SECONDS,
            history=KnownHistory(),
            on_fenced=self.fenced.append,
        )
        self.session = Session()
        self.sends = self.acknowledger._session
        self.acknowledger._session = self.session  # type: ignore[assignment]

    def progress(self) -> None:
        """The session may be ready for a batch, as after each of its events."""
        self.acknowledger._offer_due()


@pytest.fixture
async def stream() -> Harness:
    return Harness()


@pytest.fixture
async def queue() -> Harness:
    return Harness(SubscriptionType.QUEUE)


async def test_a_stream_sends_one_end_per_segment_and_generation_after_the_interval(stream: Harness) -> None:
    for offset in (3, 9, 4):
        stream.acknowledger.acknowledge(0, 1, offset)
    stream.acknowledger.acknowledge(0, 2, 5)
    await asyncio.sleep(INTERVAL_SECONDS - 0.01)
    assert stream.session.sent() == []
    await asyncio.sleep(0.02)

    (sent,) = stream.session.sent()
    assert set(sent) == {m.Acknowledgement(0, 1, 0, 10), m.Acknowledgement(0, 2, 0, 6)}
    request = stream.session.last_request()
    assert (request.topic, request.subscription, request.consumer, request.incarnation) == (
        "orders",
        "billing",
        "b-1",
        4,
    )
    assert (request.producer_id, request.producer_epoch, request.sequence) == (1, 2, 3)

    await asyncio.sleep(10 * INTERVAL_SECONDS)
    assert len(stream.session.batches) == 1, "nothing was collected since"


async def test_a_queue_sends_its_ranges(queue: Harness) -> None:
    for offset in (7, 3, 4):
        queue.acknowledger.acknowledge(0, 1, offset)
    await asyncio.sleep(INTERVAL_SECONDS)

    assert queue.session.sent() == [[m.Acknowledgement(0, 1, 3, 5), m.Acknowledgement(0, 1, 7, 8)]]


async def test_a_thousand_acknowledgements_are_sent_at_once_and_the_next_thousand_too(queue: Harness) -> None:
    for offset in range(999):
        queue.acknowledger.acknowledge(0, 1, offset)
    assert queue.session.sent() == []
    queue.acknowledger.acknowledge(0, 1, 999)
    assert queue.session.sent() == [[m.Acknowledgement(0, 1, 0, 1000)]]

    for offset in range(1000, 1999):
        queue.acknowledger.acknowledge(0, 1, offset)
    assert len(queue.session.batches) == 1
    queue.acknowledger.acknowledge(0, 1, 1999)
    assert queue.session.sent()[1:] == [[m.Acknowledgement(0, 1, 1000, 2000)]]


async def test_each_batch_is_collected_for_the_whole_interval(stream: Harness) -> None:
    stream.acknowledger.acknowledge(0, 1, 0)
    await asyncio.sleep(1.0)
    stream.acknowledger.acknowledge(0, 1, 1)
    await asyncio.sleep(1.5)
    stream.acknowledger.acknowledge(0, 1, 2)
    await asyncio.sleep(INTERVAL_SECONDS - 0.01)
    assert len(stream.session.batches) == 1
    await asyncio.sleep(0.02)

    assert len(stream.session.batches) == 2


async def test_a_queue_collects_100_000_acknowledgements_before_its_consumer_waits(queue: Harness) -> None:
    queue.session.ready_for_batch = False
    for offset in range(100_000):
        queue.acknowledger.acknowledge(0, 1, offset)
    await asyncio.wait_for(queue.acknowledger.wait_for_capacity(), 1)
    queue.acknowledger.acknowledge(0, 1, 100_000)
    waiting = asyncio.create_task(queue.acknowledger.wait_for_capacity())
    await asyncio.sleep(60)
    assert not waiting.done()

    queue.session.ready_for_batch = True
    queue.progress()
    queue.session.batches[0].resolve(Outcome.COMMITTED, m.Committed(), "")
    await asyncio.wait_for(waiting, 1)


async def test_a_batch_has_half_a_minute_to_become_durable(stream: Harness) -> None:
    stream.acknowledger.acknowledge(0, 1, 0)
    await asyncio.sleep(INTERVAL_SECONDS)

    assert stream.session.batches[0].deadlines == (INTERVAL_SECONDS + 30,)


async def test_eight_batches_are_in_flight_and_a_reply_may_take_five_seconds(stream: Harness) -> None:
    talk = Dialogue()
    talk.session = stream.sends.session
    talk.connect()
    talk.leader()
    talk.offer("0")
    talk.identify()
    talk.commit("0")

    assert len(talk.offer(*"abcdefghij")) == 8
    assert talk.wait(4.9) == []
    assert talk.wait(0.2) == ["a@1"]


async def test_while_a_batch_is_queued_further_acknowledgements_are_collected(stream: Harness) -> None:
    stream.session.ready_for_batch = False
    for offset in range(3):
        stream.acknowledger.acknowledge(0, 1, offset)
        await asyncio.sleep(INTERVAL_SECONDS)
    assert stream.session.sent() == []
    stream.session.ready_for_batch = True
    stream.progress()

    assert stream.session.sent() == [[m.Acknowledgement(0, 1, 0, 3)]]


async def test_a_batch_has_a_limit_and_the_rest_follows(queue: Harness) -> None:
    for offset in range(m.MAX_BATCH_ACKNOWLEDGEMENTS + 1):
        queue.acknowledger.acknowledge(0, 1, 2 * offset)
    await asyncio.sleep(INTERVAL_SECONDS)

    sent = queue.session.sent()
    assert sum(map(len, sent)) == m.MAX_BATCH_ACKNOWLEDGEMENTS + 1
    assert max(map(len, sent)) <= m.MAX_BATCH_ACKNOWLEDGEMENTS


async def test_a_batch_contains_the_newest_checkpoint_of_each_segment_and_keeps_it(stream: Harness) -> None:
    for checkpoint in ("a", "b", None):
        stream.acknowledger.checkpoint(0, 1, 5, checkpoint)
    stream.acknowledger.checkpoint(7, 1, 2, "of generation 1")
    stream.acknowledger.acknowledge(7, 2, 3)
    stream.acknowledger.acknowledge(8, 0, 3)
    assert await stream.acknowledger.flush(0) is False
    stream.acknowledger.checkpoint(0, 1, 6, "later")

    assert m.Acknowledgement(0, 1, 0, 5) in stream.session.sent()[0]
    assert stream.session.last_request().checkpoints == {0: "b", 7: "of generation 1"}


async def test_a_checkpoint_acknowledges_everything_before_it(queue: Harness) -> None:
    queue.acknowledger.checkpoint(0, 1, 5, None)
    assert await queue.acknowledger.flush(0) is False

    assert queue.session.sent() == [[m.Acknowledgement(0, 1, 0, 5)]]


async def test_of_a_later_generation_no_earlier_checkpoint_is_sent(stream: Harness) -> None:
    stream.acknowledger.checkpoint(7, 1, 2, "of generation 1")
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.acknowledger.acknowledge(7, 2, 3)
    await asyncio.sleep(INTERVAL_SECONDS)

    assert stream.session.last_request().checkpoints == {}


async def test_committed_and_rejected_acknowledgements_are_counted_and_rejected_ones_are_logged(
    stream: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    for segment in range(3):
        stream.acknowledger.acknowledge(segment, 1, 0)
    await asyncio.sleep(INTERVAL_SECONDS)
    (batch,) = stream.session.batches
    batch.resolve(Outcome.COMMITTED, m.Committed(rejected=[(2, "revoked"), (1, "unknown")]), "")

    assert (stream.acknowledger.committed, stream.acknowledger.rejected) == (1, 2)
    (event,) = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert event.event == "acknowledgements.rejected"
    assert "revoked" in caplog.text


async def test_a_duplicate_without_a_list_counts_as_committed_and_is_not_logged(
    stream: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    stream.acknowledger.acknowledge(0, 1, 0)
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.session.batches[0].resolve(Outcome.COMMITTED, None, "")

    assert (stream.acknowledger.committed, stream.acknowledger.rejected, caplog.records) == (1, 0, [])


async def test_an_invalid_batch_is_rejected_and_not_repeated(stream: Harness) -> None:
    for segment in range(3):
        stream.acknowledger.acknowledge(segment, 1, 0)
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.session.batches[0].resolve(Outcome.INVALID, None, "no such subscription")
    await asyncio.sleep(INTERVAL_SECONDS)

    assert (stream.acknowledger.committed, stream.acknowledger.rejected) == (0, 3)
    assert len(stream.session.batches) == 1


@pytest.mark.parametrize("outcome", [Outcome.FENCED, Outcome.FORGOTTEN])
async def test_a_fenced_consumer_learns_why_and_nothing_is_repeated(stream: Harness, outcome: Outcome) -> None:
    stream.acknowledger.acknowledge(0, 1, 0)
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.session.batches[0].resolve(outcome, None, "replaced by a newer incarnation")
    await asyncio.sleep(INTERVAL_SECONDS)

    assert stream.fenced == ["replaced by a newer incarnation"]
    assert len(stream.session.batches) == 1


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.FAILED])
async def test_what_may_not_be_stored_is_collected_again_and_joins_what_came_since(
    stream: Harness, outcome: Outcome
) -> None:
    stream.acknowledger.acknowledge(0, 1, 4)
    stream.acknowledger.acknowledge(1, 1, 4)
    await asyncio.sleep(INTERVAL_SECONDS)
    stream.acknowledger.acknowledge(0, 1, 9)
    stream.session.batches[0].resolve(outcome, None, "no answer")
    await asyncio.sleep(INTERVAL_SECONDS)

    assert set(stream.session.sent()[1]) == {m.Acknowledgement(0, 1, 0, 10), m.Acknowledgement(1, 1, 0, 5)}
    assert (stream.acknowledger.committed, stream.acknowledger.rejected) == (0, 0)


async def test_a_flush_sends_at_once_and_waits_until_everything_has_an_outcome(stream: Harness) -> None:
    stream.acknowledger.acknowledge(0, 1, 4)
    flushed = asyncio.create_task(stream.acknowledger.flush(60))
    await asyncio.sleep(0.001)
    assert len(stream.session.batches) == 1
    stream.acknowledger.acknowledge(0, 1, 5)
    stream.session.batches[0].resolve(Outcome.COMMITTED, m.Committed(), "")
    await asyncio.sleep(0.001)
    assert not flushed.done()
    stream.session.batches[1].resolve(Outcome.COMMITTED, m.Committed(), "")

    assert await flushed is True
    assert asyncio.get_running_loop().time() < INTERVAL_SECONDS


async def test_closing_waits_for_a_while_and_then_sends_and_repeats_nothing(stream: Harness) -> None:
    loop = asyncio.get_running_loop()
    stream.acknowledger.acknowledge(0, 1, 4)
    began = loop.time()
    await stream.acknowledger.close(7)
    assert loop.time() - began == pytest.approx(7)
    assert stream.session.closed

    stream.session.batches[0].resolve(Outcome.UNKNOWN, None, "closed")
    stream.acknowledger.acknowledge(0, 1, 5)
    stream.progress()
    await asyncio.sleep(INTERVAL_SECONDS)
    assert len(stream.session.batches) == 1
