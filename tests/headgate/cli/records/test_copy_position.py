"""A copy in any number of runs has each record once, each key in order, with small positions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate import TopicInfo
from headgate.cli.records.copy_position import MAX_POSITION_BYTES, CopyPositionError, CopyProgress
from headgate.protocol import messages as m
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.topic_reader import TopicReader
from tests.headgate.reading.test_topic_reader import CHUNKS, possible
from tests.support.fakes.cli_client import topic
from tests.support.samples.positioned_ledger import LedgerWithPositions


def described(*segments: tuple[int, int, bool], topic_id: int = 1, shard: int = 0) -> m.TopicInfo:
    """Return a topic with segments of (number, end offset, sealed)."""
    return m.TopicInfo(
        topic="orders",
        topic_id=topic_id,
        shard=shard,
        layout_epoch=1,
        segments=[
            m.SegmentInfo(
                segment=number,
                first_hash=0,
                last_hash=65_535,
                state="sealed" if sealed else "active",
                parents=[],
                children=[],
                next_offset=end,
                size_bytes=0,
                created_at_ms=0,
            )
            for number, end, sealed in segments
        ],
        subscriptions=[],
    )


LEDGER_ID, OTHER_LEDGER_ID = "0123456789abcdef" * 2, "fedcba9876543210" * 2
TARGET = topic("copies")


def begun(
    source: m.TopicInfo, stored: bytes | None, *, target: TopicInfo = TARGET, ledger_id: str = LEDGER_ID
) -> CopyProgress:
    return CopyProgress(ledger_id, source, target, stored)


async def run(known: LedgerWithPositions, stored: bytes | None, limit: int) -> tuple[list[LedgerRecord], bytes | None]:
    """Copy at most ``limit`` records; return them, and the position that the producer has stored."""
    source = known.description()
    progress = begun(source, stored)
    copied: list[LedgerRecord] = []
    async for record in TopicReader(known.ledger, source, starts=progress.starts).stored():
        if len(copied) == limit:
            break
        copied.append(record)
        stored = progress.after(record.segment, record.offset)
    else:
        assert progress.records == len(copied)
    return copied, stored


@given(CHUNKS, st.lists(st.integers(0, 30), max_size=4), st.integers(0, 21))
def test_each_record_is_copied_once_in_any_number_of_runs(chunks, limits: list[int], compacted: int) -> None:
    """Runs end at any record, and records, splits and a compaction come between them."""

    async def play() -> None:
        known = LedgerWithPositions()
        await known.write(1)
        copied: list[LedgerRecord] = []
        stored: bytes | None = None
        pauses = dict(zip(range(2, 100, 3), limits, strict=False))
        for time, steps in enumerate(chunks, 1):
            await known.write(10 * time, *possible(known, steps))
            if time in pauses:
                found, stored = await run(known, stored, pauses[time])
                copied += found
            if time == compacted:
                await known.compact(known.state.chunk)
        found, stored = await run(known, stored, 10_000)
        copied += found

        topic = known.state.topics["t"]
        for segment, tail in topic.tails.items():
            assert list(range(tail.next_offset)) == [each.offset for each in copied if each.segment == segment]
            for ancestor in topic.layout.ancestors(segment):
                last = max((at for at, each in enumerate(copied) if each.segment == ancestor), default=-1)
                assert all(at > last for at, each in enumerate(copied) if each.segment == segment)
        assert ([], stored) == await run(known, stored, 10_000), "nothing is left"

    asyncio.run(play())


def test_a_segment_that_was_sealed_at_the_position_is_complete() -> None:
    stored = begun(described((0, 3, False)), None).after(0, 2)
    sealed = begun(described((0, 3, True), (1, 1, False), (2, 0, False)), stored)

    assert (sealed.starts, sealed.records) == ({0: 3, 1: 0, 2: 0}, 1)
    assert begun(described((1, 1, False), (2, 0, False)), sealed.after(1, 0)).records == 0


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (described((1, 9, False)), "segment 0 of topic 'orders' was read up to offset 3, and pruned since"),
        (described((0, 2, False)), "ends at 2, and its first 3 records were read"),
    ],
    ids=["pruned", "an older ledger"],
)
def test_a_copy_that_cannot_continue_is_an_error(later: m.TopicInfo, reason: str) -> None:
    stored = begun(described((0, 5, False)), None).after(0, 2)

    with pytest.raises(CopyPositionError, match=reason):
        begun(later, stored)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"source": described((0, 9, False), topic_id=2)},
            "from topic id 1 of shard 0 .* 'orders' has id 2 of shard 0",
        ),
        ({"source": described((0, 9, False), shard=3)}, "from topic id 1 of shard 0 .* 'orders' has id 1 of shard 3"),
        ({"target": replace(TARGET, topic_id=8)}, "to topic id 1 of shard 2; .* 'copies' id 8 of shard 2"),
        ({"target": replace(TARGET, shard=3)}, "to topic id 1 of shard 2; .* 'copies' id 1 of shard 3"),
        ({"ledger_id": OTHER_LEDGER_ID}, f"in ledger {LEDGER_ID} .* in this ledger {OTHER_LEDGER_ID}"),
    ],
    ids=["an earlier source", "a source on another shard", "an earlier target", "another target", "another ledger"],
)
def test_a_position_of_another_copy_is_an_error_that_names_both(changed: dict[str, Any], reason: str) -> None:
    """An id of a topic is unique on its shard only."""
    source = described((0, 5, False))
    stored = begun(source, None).after(0, 2)
    assert begun(source, stored).starts == {0: 3}

    with pytest.raises(CopyPositionError, match=reason):
        begun(**{"source": source, **changed}, stored=stored)


@pytest.mark.parametrize("stored", [b"", b"text", b"\x93\x05\x01\xa1x"], ids=["empty", "text", "of a file"])
def test_the_position_of_another_program_is_an_error(stored: bytes) -> None:
    with pytest.raises(CopyPositionError, match="has read another source before"):
        begun(described((0, 5, False)), stored)


def test_a_copy_whose_position_would_be_too_large_does_not_begin() -> None:
    begun(described(*((number, 10**9, False) for number in range(160))), None)

    with pytest.raises(
        CopyPositionError, match=f"200 segments to copy.* of at most {MAX_POSITION_BYTES}: copy it with a program"
    ):
        begun(described(*((number, 10**9, False) for number in range(200))), None)
