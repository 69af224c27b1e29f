"""The checks of the demo: none reports a clean run. That each finds its violation is shown by the judge of chaos runs."""

import pytest

from demo import checks
from demo.checks import Delivery, SentRecord, StoredRecord
from headgate.ledger.chunk import Chunk, ChunkHeader
from headgate.model import entries as e

CLEAN = [StoredRecord(0, 0, "a", 0), StoredRecord(1, 0, "b", 0), StoredRecord(0, 1, "a", 1)]


def deliveries(*rows: tuple[int, int, int, str, int]) -> list[Delivery]:
    return [Delivery(at, "c", segment, offset, key, counter) for at, segment, offset, key, counter in rows]


def sent(outcome: str, *records: tuple[str, int]) -> list[SentRecord]:
    return [SentRecord(key, counter, 0, 1, outcome) for key, counter in records]


RECEIVED = deliveries((1, 0, 0, "a", 0), (2, 1, 0, "b", 0), (3, 0, 1, "a", 1))


def test_a_clean_run_has_no_violation() -> None:
    assert not checks.lost(sent("committed", ("a", 0), ("a", 1), ("b", 0)), CLEAN)
    assert not checks.stored_twice(CLEAN)
    assert not checks.stored_out_of_order(CLEAN)
    assert not checks.undelivered(CLEAN, RECEIVED)
    assert not checks.altered(CLEAN, RECEIVED)
    assert not checks.reordered(RECEIVED)


def test_only_first_deliveries_must_be_in_order() -> None:
    """A redelivery after a crash follows later records, which is no violation."""
    again = deliveries((4, 0, 0, "a", 0))
    early = deliveries((0, 0, 1, "a", 1), (1, 0, 0, "a", 0))

    assert not checks.reordered([*RECEIVED, *again])
    assert 1 == checks.repeated([*RECEIVED, *again])
    assert ["a #0 came after #1"] == [v.detail for v in checks.reordered(early)]


def ledger(*chunks: list[e.AnyEntry]) -> list[Chunk]:
    return [
        Chunk(
            ChunkHeader(format=1, shard=0, number=n, leader_epoch=1, at_ms=n * 1000, entries=len(entries), records=0),
            tuple(entries),
        )
        for n, entries in enumerate(chunks, start=1)
    ]


GRANT = {"topic_id": 1, "subscription_id": 2, "consumer": "c"}


STORED: list[list[e.AnyEntry]] = [
    [e.TopicCreated(topic_id=1, topic="t", segments=1, token="x")],
    [
        e.SubscriptionCreated(
            topic_id=1,
            subscription_id=2,
            subscription="s",
            subscription_type="STREAM",
            order="strict",
            positions={},
        ),
        e.SegmentGranted(segment=0, generation=1, **GRANT),
        e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(0, 0, 65535, 0, 1)], size_bytes=1),
    ],
    [e.SegmentSplit(topic_id=1, segment=0, end_offset=1, token="y")],
]
ACKNOWLEDGED = e.RecordsAcknowledged(
    topic_id=1, subscription_id=2, seek_generation=0, ranges=[e.AcknowledgedRange(0, 0, 1)]
)


@pytest.mark.parametrize(("early", "violations"), [(False, 0), (True, 1)])
def test_a_child_granted_before_its_parent_is_drained_is_found(early: bool, violations: int) -> None:
    """The time that it was blocked follows from the ledger's timestamps."""
    granted = e.SegmentGranted(segment=1, generation=2, **GRANT)
    steps: list[list[e.AnyEntry]] = [[granted], [ACKNOWLEDGED]] if early else [[ACKNOWLEDGED], [granted]]
    chunks = ledger(*STORED, *steps)

    assert violations == len(checks.children_before_parents(chunks, 0, "t", "s"))
    if not early:
        assert [checks.BlockedSegment(1, (0,), 2.0, 1.0)] == checks.blocked_segments(chunks, 0, "t", "s")


def test_the_release_of_a_child_of_an_idle_segment_counts_from_its_split() -> None:
    """Its grandparent was read long before, and its parent never had a record."""
    chunks = ledger(
        *STORED,
        [ACKNOWLEDGED],
        [e.SegmentGranted(segment=1, generation=2, **GRANT)],
        *([] for _ in range(20)),
        [e.SegmentSplit(topic_id=1, segment=1, end_offset=0, token="z")],
        [e.SegmentGranted(segment=3, generation=3, **GRANT)],
    )

    assert checks.BlockedSegment(3, (1,), 1.0, 1.0) == checks.blocked_segments(chunks, 0, "t", "s")[-1]
