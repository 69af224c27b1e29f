"""A run that ends before everything is delivered is unfinished. It is not reported as a broken promise."""

from demo.checks import Delivery, StoredRecord
from demo.report import Findings, evaluate_run
from demo.scenario import CHECKPOINT, QUEUE, STREAM, SUBSCRIPTIONS, Run, Waiting
from headgate.ledger.chunk import Chunk, ChunkHeader
from headgate.model import entries as e

STORED = [StoredRecord(0, 0, "a", 0), StoredRecord(0, 1, "a", 1)]
RECEIVED = [Delivery(at, "c", 0, at, "a", at) for at in range(2)]
TOPIC = e.TopicCreated(topic_id=1, topic="telemetry", segments=1, token="x")
CHUNK = Chunk(ChunkHeader(format=1, shard=0, number=1, leader_epoch=1, at_ms=0, entries=1, records=0), (TOPIC,))


def judged(waiting: dict[str, Waiting], deliveries: dict[str, list[Delivery]]) -> Findings:
    return evaluate_run(
        Run(waiting=waiting),
        shard=0,
        produced="",
        committed={"a": [0, 1]},
        chunks=[CHUNK],
        stored=STORED,
        deliveries=dict.fromkeys(SUBSCRIPTIONS, RECEIVED) | deliveries,
    )


def test_records_that_a_subscription_still_waits_for_are_no_violation() -> None:
    waiting = {name: Waiting(1, ("Segment 1 is blocked until segment 0 is drained.",)) for name in (STREAM, CHECKPOINT)}

    found = judged(waiting, {STREAM: RECEIVED[:1], CHECKPOINT: []})

    assert [] == found.violations
    assert "1 record: Segment 1 is blocked until segment 0 is drained." == found.unfinished[STREAM]


def test_records_missing_from_a_finished_subscription_are_violations() -> None:
    found = judged({STREAM: Waiting(1)}, {STREAM: [], QUEUE: RECEIVED[:1]})

    assert ["not delivered"] == [violation.invariant for violation in found.violations]
