"""Explanations: what is the case comes first, then why, and when it ends by itself."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.reporting.explanation import duration, explain
from headgate.protocol import messages as m
from tests.support.subscription_environment import CoordinatorHarness

pytestmark = pytest.mark.looptime


def explain_all(harness: CoordinatorHarness) -> m.SubscriptionExplanation:
    """Explain everything in ``harness``."""
    return explain(
        harness.subscription,
        harness.topic,
        harness.coordinator.gate,
        harness.coordinator.explanation_context(),
        segments=sorted(harness.topic.layout.segments),
        consumers=sorted(harness.subscription.consumers),
    )


def text(parts: list) -> str:
    return " ".join(sentence for part in parts for sentence in part.sentences)


async def test_a_segment_that_is_read_says_by_whom_and_what_is_left():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)
    harness.register("ada")
    harness.store(0, 12)
    harness.acknowledge("ada", 0, 5)

    (segment,) = explain_all(harness).segments
    await harness.coordinator.close()

    assert segment.sentences == ["Segment 0 (0000-ffff) is read by ada: 7 records not acknowledged."]
    assert (segment.status, segment.consumers, segment.backlog_records) == ("granted", ["ada"], 7)


async def test_a_blocked_segment_names_what_blocks_it_with_backlog_and_expected_time():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)
    harness.register("ada")
    harness.store(0, 120)
    harness.split(0)
    for end in (10, 20, 30):
        harness.acknowledge("ada", 0, end)
        await harness.run(4)
        harness.heartbeat("ada")

    child = explain_all(harness).segments[1]
    await harness.coordinator.close()

    assert child.status == "blocked"
    (ancestor,) = child.blocked_by
    assert (ancestor.segment, ancestor.state, ancestor.backlog_records, ancestor.consumers) == (
        0,
        "sealed",
        90,
        ["ada"],
    )
    assert ancestor.records_per_second == pytest.approx(2.5, rel=0.3)
    assert ancestor.expected_seconds == pytest.approx(90 / ancestor.records_per_second)
    assert child.sentences[0] == "Segment 1 (0000-7fff) waits until segment 0 is drained."
    assert "has 90 records not acknowledged and is read by ada: about" in child.sentences[1]


async def test_a_rate_that_was_not_measured_is_not_guessed():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)
    harness.register("ada")
    harness.store(0, 120)
    harness.split(0)

    child = explain_all(harness).segments[1]
    await harness.coordinator.close()

    assert child.blocked_by[0].expected_seconds is None
    assert "how long that takes is not known" in child.sentences[1]


async def test_an_end_that_is_reached_and_not_counted_yet_says_when_the_next_poll_is():
    async def blind(_: frozenset[int]) -> frozenset[int]:
        return frozenset()

    harness = CoordinatorHarness(segments=1)
    harness.lead(blind)
    harness.register("ada")
    harness.store(0, 3)
    harness.split(0)
    harness.acknowledge("ada", 0, 3)
    await harness.run(1)

    child = explain_all(harness).segments[1]
    await harness.coordinator.close()

    assert "acknowledged to its end; that has to be counted" in child.sentences[1]
    assert child.sentences[2].startswith("The next drain poll is in")
    assert child.next_poll_seconds is not None
    assert child.next_poll_seconds > 0


async def test_a_stream_without_a_checker_says_that_its_children_wait_for_ever():
    harness = CoordinatorHarness(segments=1)
    harness.lead(None)
    harness.register("ada")
    harness.split(0)

    summary = " ".join(explain_all(harness).summary)
    await harness.coordinator.close()

    assert "No drain checker is configured" in summary


async def test_a_segment_on_its_way_says_whose_confirmation_is_missing_and_when_it_is_fenced():
    harness = CoordinatorHarness(segments=2)
    harness.lead(harness.check)
    harness.register("ada")
    harness.register("bob")
    await harness.run(10)

    explained = explain_all(harness)
    await harness.coordinator.close()

    (moving,) = [segment for segment in explained.segments if segment.status == "revoking"]
    assert (moving.waiting_for, round(moving.waiting_seconds or 0)) == ("ada", 10)
    assert (
        "on its way from ada to bob: ada was told to finish 10 s ago and has not confirmed; in 20 s it is fenced"
        in (moving.sentences[0])
    )
    assert f"bob will get {moving.segment} from ada." in text(explained.consumers)


async def test_a_silent_holder_says_how_long_it_keeps_what_it_has():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)
    harness.register("ada")
    harness.coordinator.client_disconnected("client-ada")
    await asyncio.sleep(20)

    (segment,) = explain_all(harness).segments
    await harness.coordinator.close()

    assert "ada, which has been silent for 20 s and keeps it for another 40 s" in segment.sentences[0]


async def test_a_consumer_without_work_is_told_why():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)
    harness.register("ada")
    harness.register("bob")
    harness.split(0)

    explained = explain_all(harness)
    await harness.coordinator.close()

    idle = next(consumer for consumer in explained.consumers if not consumer.segments)
    assert idle.sentences[0].startswith("bob holds nothing: ")


async def test_without_consumers_it_says_that_nobody_reads():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)

    explained = explain_all(harness)
    await harness.coordinator.close()

    assert "No consumer is registered" in " ".join(explained.summary)
    assert explained.segments[0].status == "waiting"
    assert "no consumer is registered" in explained.segments[0].sentences[0]


async def test_what_is_not_tracked_has_no_backlog():
    harness = CoordinatorHarness(segments=1, type="CHECKPOINT", order="none")
    harness.lead(harness.check)
    harness.register("ada")
    harness.store(0, 4)

    explained = explain_all(harness)
    await harness.coordinator.close()

    assert explained.segments[0].backlog_records is None
    assert "not tracked" in explained.segments[0].sentences[0]
    assert "Children do not wait" in " ".join(explained.summary)


async def test_a_drained_segment_says_that_nobody_needs_it():
    harness = CoordinatorHarness(segments=1)
    harness.lead(harness.check)
    harness.register("ada")
    harness.store(0, 3)
    harness.split(0)
    harness.acknowledge("ada", 0, 3)
    await harness.run(5)

    explained = explain_all(harness)
    await harness.coordinator.close()

    assert explained.segments[0].sentences == ["Segment 0 (0000-ffff) is drained: nobody needs to read it again."]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (0.44, "0.4 s"), (12.2, "12 s"), (180, "3 min"), (7200, "2 h"), (300_000, "3 days")],
)
def test_durations_are_said_as_people_say_them(seconds: float, said: str):
    assert duration(seconds) == said
