"""Explanations: the status comes first, then the cause, then the deadline."""

import asyncio
from dataclasses import replace

import pytest

from headgate.model import entries as e
from headgate.views.explanations import Explanation
from shard.reporting.explanation import ExplanationContext, SegmentHolder, explain
from shard.state.consumers import RegisteredConsumer
from shard.state.subscription import Subscription
from shard.steps import complete
from shard.subscriptions.gate import compute_gate
from shard.subscriptions.two_witnesses import DrainClaim
from tests.coordinator.conftest import Lead
from tests.support.worlds.command_shard import imported_topic
from tests.support.worlds.subscription_environment import CoordinatorHarness


def explain_all(harness: CoordinatorHarness, context: ExplanationContext | None = None) -> Explanation:
    segments, consumers = sorted(harness.topic.layout.segments), sorted(harness.subscription.consumers)
    gate, context = harness.coordinator.reconciler.gate, context or harness.coordinator.explanation_context()
    return complete(explain(harness.subscription, harness.topic, gate, context, segments=segments, consumers=consumers))


def consumer_sentences(explained: Explanation) -> dict[str, list[str]]:
    return {consumer.consumer: list(consumer.sentences) for consumer in explained.consumers}


async def test_the_summary_counts_readable_blocked_and_drained_segments(lead: Lead) -> None:
    harness = lead("ada", records=3).split(0)

    assert explain_all(harness).summary[:2] == (
        "Subscription billing of topic orders: type STREAM, order strict.",
        "Of 3 segments, 1 is readable, 2 are blocked and 0 are drained.",
    )


async def test_a_held_segment_names_its_consumer_and_its_backlog(lead: Lead) -> None:
    harness = lead("ada", records=12)
    harness.acknowledge("ada", 0, 5)
    explained = explain_all(harness)

    (segment,) = explained.segments
    assert segment.sentences == ("Segment 0 (0000-ffff) is read by ada: 7 unacknowledged records.",)
    assert (segment.status, segment.consumers, segment.backlog_records) == ("granted", ("ada",), 7)
    assert consumer_sentences(explained) == {"ada": ["ada reads segment 0."]}


def external_subscription() -> Subscription:
    created = e.SubscriptionCreated(
        topic_id=1, subscription_id=2, subscription="s", subscription_type="STREAM", order="strict", positions={}
    )
    return Subscription.created(created, "t")


def sentence_of_a_held_segment(subscription: Subscription, **context: object) -> str:
    """Explain segment 0 of an external topic, held by ada."""
    topic = imported_topic(e.ImportedSegment(segment=0, label="a", end_offset=10), positions="offsets")
    gate = compute_gate(topic.layout, set(), subscription.type, subscription.order)
    given: dict = {"now_ms": 0, "revoke_timeout_seconds": 30, "grace_seconds": 600}
    holder = SegmentHolder(consumer="ada", segment_slice=0)
    explained = explain(
        subscription,
        topic,
        gate,
        ExplanationContext(**given | {"held": {0: [holder]}} | context),
        segments=[0],
        consumers=[],
    )
    (segment,) = complete(explained).segments
    (sentence,) = segment.sentences
    return sentence


def test_the_backlog_of_a_source_that_only_it_can_count_is_its_position() -> None:
    left = "acknowledged to 0 of 10 (only its source counts records)"

    assert sentence_of_a_held_segment(external_subscription()) == f"Segment 0 (a) is read by ada: {left}."


@pytest.mark.parametrize(
    ("disconnected_ms", "times"),
    [
        (119_450, "119 s and is removed in 8 min unless it returns"),
        (119_550, "120 s and is removed in 8 min unless it returns"),
        (700_000, "12 min and is removed in 0.0 s unless it returns"),
        (-5000, "0.0 s and is removed in 10 min unless it returns"),
    ],
    ids=["rounded down", "rounded up", "over", "by a clock that was set back"],
)
def test_a_grace_period_is_the_rest_of_what_was_agreed(disconnected_ms: int, times: str) -> None:
    subscription = external_subscription()
    subscription.consumers["ada"] = RegisteredConsumer("ada", 1, "ada", disconnected_at_ms=1_000_000)
    sentence = sentence_of_a_held_segment(subscription, now_ms=1_000_000 + disconnected_ms)

    assert f"is read by ada, which has been disconnected for {times}: " in sentence


def test_a_revoked_segment_without_a_next_owner_is_being_released() -> None:
    """An earlier leader may have revoked it. Each leader gives the holder its full time."""
    late = SegmentHolder(consumer="ada", segment_slice=0, waited_seconds=20, revoked_at_ms=5_000)

    assert sentence_of_a_held_segment(external_subscription(), held={0: [late]}, now_ms=50_000) == (
        "Segment 0 (a) is being released by ada: revoked 45 s ago, not yet confirmed by ada, which is fenced in 10 s."
    )


async def test_a_running_drain_check_is_named(lead: Lead) -> None:
    harness = lead("ada", records=3).split(0)
    context = replace(harness.coordinator.explanation_context(), next_poll_seconds=0)

    assert explain_all(harness, context).summary[-1] == "A drain check is running."
    harness.subscription.consumers.clear()
    assert "No consumer is registered: no segment is read." in explain_all(harness, context).summary


async def test_a_blocked_segment_names_its_ancestor_with_backlog_and_time_left(lead: Lead) -> None:
    harness = lead("ada", records=120).split(0)
    for end in (10, 20, 30):
        harness.acknowledge("ada", 0, end)
        await harness.run(4)
        harness.heartbeat("ada")

    child = explain_all(harness).segments[1]
    (ancestor,) = child.blocked_by
    assert child.status == "blocked"
    assert (ancestor.segment, ancestor.state, ancestor.backlog_records) == (0, "sealed", 90)
    assert ancestor.consumers == ("ada",)
    assert ancestor.records_per_second == pytest.approx(2.5, rel=0.3)
    assert ancestor.expected_seconds == pytest.approx(90 / ancestor.records_per_second)
    assert child.sentences[0] == "Segment 1 (0000-7fff) is blocked until segment 0 is drained."
    assert len(child.sentences) == 2, "a drain check would find nothing yet"
    assert "has 90 unacknowledged records and is read by ada: about" in child.sentences[1]
    assert child.sentences[1].endswith(f" left at {ancestor.records_per_second:.1f} records/s.")


async def test_an_unmeasured_rate_is_reported_as_unknown(lead: Lead) -> None:
    harness = lead("ada", records=120).split(0)

    child = explain_all(harness).segments[1]
    assert child.blocked_by[0].expected_seconds is None
    assert child.sentences[1].endswith("is read by ada: time left unknown.")


async def test_a_blocked_ancestor_and_an_active_ancestor_are_named_as_such(lead: Lead) -> None:
    harness = lead("ada", records=3).split(0)
    harness.store(1, 1)
    harness.split(1)

    grandchild = explain_all(harness).segments[3]
    assert grandchild.sentences[0] == "Segment 3 (0000-3fff) is blocked until segments 1, 0 are drained."
    assert "has 1 unacknowledged record and is itself blocked" in grandchild.sentences[1]


async def test_a_fully_acknowledged_ancestor_waits_for_the_next_drain_check(lead: Lead) -> None:
    harness = lead("ada", records=3)
    harness.checker.reports_nothing_drained = True
    harness.split(0)
    harness.acknowledge("ada", 0, 3)
    await harness.run(1)

    child = explain_all(harness).segments[1]
    assert "is acknowledged to its end; a drain check has to confirm that." in child.sentences[1]
    assert child.sentences[2].startswith("The next drain check runs in")
    assert child.next_poll_seconds > 0


@pytest.mark.parametrize(
    ("problem", "cause"),
    [
        ("the Spark process ended with code 1", "Drain checks are not answered: the Spark process ended with code 1. "),
        ("did you mean 'dead'?", "Drain checks are not answered: did you mean 'dead'? "),
    ],
)
async def test_the_cause_is_named_while_drain_checks_are_not_answered(lead: Lead, problem: str, cause: str) -> None:
    harness = lead("ada", records=3).split(0)
    harness.acknowledge("ada", 0, 3)
    context = harness.coordinator.explanation_context(problem)
    explained = explain_all(harness, context)

    assert explained.summary[-1].startswith(cause)
    assert explained.segments[1].sentences[2].startswith(cause)


async def test_a_key_that_is_being_resumed_names_where_its_obstacle_is_logged(lead: Lead) -> None:
    harness = lead("ada", records=3)
    ids = harness.subscription.ids
    harness.propose(e.KeyParked(**ids, key=b"k", reason=""))
    harness.subscription.dropped_records = 3
    *_, lost, parked = explain_all(harness).summary
    harness.propose(e.KeyResumed(**ids, key=b"k", dropped=False, token="t"))

    assert lost == "Retention deleted 3 records that it had not acknowledged."
    assert parked.startswith(
        "1 key is parked, with 0 records, the oldest for 0.0 s; being resumed: 0. Their records go"
    )
    logged = "; being resumed: 1 (its consumer logs key.not_resumed while one cannot be). Their records"
    assert logged in explain_all(harness).summary[-1]


async def test_the_failure_of_the_last_drain_check_is_named_until_one_is_answered(lead: Lead) -> None:
    harness = lead("ada", records=3)
    harness.checker.failure = "shard 0 could not be counted"
    harness.split(0)
    await harness.run(3)
    cause = "Drain checks are not answered: shard 0 could not be counted. The next drain check runs in"
    assert explain_all(harness).summary[-1].startswith(cause)

    harness.checker.failure = None
    await harness.run(5)
    assert explain_all(harness).summary[-1].startswith("The next drain check runs in")


async def test_a_drain_check_without_an_answer_says_since_when(lead: Lead) -> None:
    """Spark hangs: the check times out only after a minute."""
    harness = lead("ada", records=3)
    harness.checker.answer_seconds = 600
    harness.split(0)
    await harness.run(4)
    assert explain_all(harness).summary[-1] == "A drain check is running."
    await harness.run(30)

    assert explain_all(harness).summary[-1].startswith("A drain check has been running for 32 s: no answer from Spark")


async def test_a_drain_check_that_the_leader_contradicts_is_named_until_it_no_longer_does(lead: Lead) -> None:
    harness = lead("ada", records=3).split(0)
    harness.checker.claims = {0: DrainClaim(3)}
    await harness.run(3)
    assert explain_all(harness).segments[1].sentences[1] == (
        "Segment 0 (0000-ffff) has 3 unacknowledged records and is read by ada: time left unknown. This leader does not "
        "believe the drain check: Spark says that it is drained to 3; this leader knows 0 of 3 as acknowledged. Check "
        "which ledger the Spark process counts (headgate doctor)."
    )

    harness.checker.claims = {}
    await harness.run(5)
    assert "does not believe" not in explain_all(harness).segments[1].sentences[1]


async def test_a_stream_without_a_drain_check_says_that_segments_stay_blocked(lead: Lead) -> None:
    harness = lead("ada", records=1, with_drain_check=False).split(0)

    assert "No drain check is configured: blocked segments stay blocked." in explain_all(harness).summary


async def test_a_revoked_segment_names_the_missing_confirmation_and_its_deadline(lead: Lead) -> None:
    harness = lead("ada", "bob", segments=2)
    await harness.run(10)
    explained = explain_all(harness)

    (moving,) = [segment for segment in explained.segments if segment.status == "revoking"]
    assert (moving.waiting_for, round(moving.waiting_seconds or 0)) == ("ada", 10)
    revoked = "revoked 10 s ago, not yet confirmed by ada, which is fenced in 20 s"
    assert moving.sentences == (f"Segment 1 (8000-ffff) is moving from ada to bob: {revoked}.",)
    assert consumer_sentences(explained) == {
        "ada": ["ada reads segment 0.", "ada has not yet confirmed the revocation of segment 1."],
        "bob": ["bob has no segment: a segment is moving between consumers.", "bob will get segment 1 from ada."],
    }
    harness.confirm("ada", 1)
    assert consumer_sentences(explain_all(harness))["bob"] == ["bob reads segment 1."], "not from itself"


async def test_a_disconnected_holder_states_its_grace_period(lead: Lead) -> None:
    harness = lead("ada")
    harness.disconnect("anonymous/client-ada")
    await asyncio.sleep(20)
    explained = explain_all(harness)

    grace = "has been disconnected for 20 s and is removed in 40 s unless it returns"
    (segment,) = explained.segments
    assert segment.sentences == (f"Segment 0 (0000-ffff) is read by ada, which {grace}: 0 unacknowledged records.",)
    assert consumer_sentences(explained)["ada"][-1] == f"ada {grace}."
    assert [False] == [each.connected for each in explained.consumers]


async def test_without_consumers_the_explanation_says_so(lead: Lead) -> None:
    explained = explain_all(lead())

    assert "No consumer is registered: no segment is read, and no drain check begins." in explained.summary
    assert explained.segments[0].status == "waiting"
    assert "is readable and has no consumer: " in explained.segments[0].sentences[0]


async def test_a_segment_that_waits_for_a_reconciliation_says_so(lead: Lead) -> None:
    """The new leader finds the drained parent in the ledger, and has not granted the children yet."""
    harness = lead("ada", records=3).split(0)
    harness.propose(e.SegmentsDrained(topic_id=1, subscription_id=2, segments=[0], seek_generation=0))
    await harness.change_leader()

    segment = explain_all(harness).segments[1]
    assert segment.status == "waiting"
    assert "is readable and will be assigned at the next reconciliation" in segment.sentences[0]


def test_an_active_ancestor_of_an_external_topic_cannot_be_drained() -> None:
    """A source may report children before the parent has ended."""
    topic = imported_topic(
        e.ImportedSegment(segment=0, label="a"), e.ImportedSegment(segment=1, label="b", parents=[0])
    )
    created = e.SubscriptionCreated(
        topic_id=1, subscription_id=2, subscription="s", subscription_type="STREAM", order="strict", positions={}
    )
    subscription = Subscription.created(created, "t")
    gate = compute_gate(topic.layout, set(), subscription.type, subscription.order)
    context = ExplanationContext(now_ms=0, revoke_timeout_seconds=30, grace_seconds=60, held={})
    (child,) = complete(explain(subscription, topic, gate, context, segments=[1], consumers=[])).segments

    assert child.sentences == (
        "Segment 1 (b) is blocked until segment 0 is drained.",
        "Segment 0 (a) is active: it still receives records and cannot be drained yet.",
    )


async def test_an_untracked_subscription_has_no_backlog(lead: Lead) -> None:
    explained = explain_all(lead("ada", type="CHECKPOINT", records=4))

    assert explained.segments[0].backlog_records is None
    assert "headgate does not track its progress" in explained.segments[0].sentences[0]
    assert "Child segments do not wait for their parents in this subscription." in explained.summary


async def test_a_drained_segment_is_explained_in_one_sentence(lead: Lead) -> None:
    harness = lead("ada", records=3).split(0)
    harness.acknowledge("ada", 0, 3)
    await harness.run(5)

    assert explain_all(harness).segments[0].sentences == (
        "Segment 0 (0000-ffff) is drained: all its records are acknowledged.",
    )
