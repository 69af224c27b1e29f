"""A copy in any number of runs has each record once, each key in order, with small positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.topic_source import TopicSource
from headgate.errors import HeadgateError
from headgate.ledger.objects import snapshot_path
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.topic_position import MAX_POSITION_BYTES, CopyProgress, Snapshot, beginning, decode_copy
from headgate.reading.topic_reader import TopicReader
from tests.headgate.cli.records.test_read import never
from tests.headgate.reading.test_topic_reader import CHUNKS, possible
from tests.support.fakes import cli_client
from tests.support.samples.positioned_ledger import LedgerWithPositions

LEDGER_ID = "0123456789abcdef" * 2


async def begun(known: LedgerWithPositions, stored: bytes | None) -> CopyProgress:
    topic = known.description()
    source = TopicSource(topic, known.ledger, LEDGER_ID, newest_chunk=1, describe=never)
    position = beginning(topic, LEDGER_ID) if stored is None else decode_copy(stored)
    assert position is not None
    now = Snapshot(topic, LEDGER_ID, *await source.newest())
    return CopyProgress(now, await source.starts_after(position, now, remedy=""))


async def run(known: LedgerWithPositions, stored: bytes | None, limit: int) -> tuple[list[LedgerRecord], bytes | None]:
    """Copy at most ``limit`` records; return them, and the position that the producer has stored."""
    source = known.description()
    progress = await begun(known, stored)
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
async def test_each_record_is_copied_once_in_any_number_of_runs(chunks, limits: list[int], compacted: int) -> None:
    """Runs end at any record, and records, splits and a compaction come between them."""
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
            await known.write(10 * time + 1)
            await known.ledger.store.create(snapshot_path(0, known.state.chunk), b"")
    found, stored = await run(known, stored, 10_000)
    copied += found

    topic = known.state.topics["t"]
    for segment, tail in topic.tails.items():
        assert list(range(tail.next_offset)) == [each.offset for each in copied if each.segment == segment]
        for ancestor in topic.layout.ancestors(segment):
            last = max((at for at, each in enumerate(copied) if each.segment == ancestor), default=-1)
            assert all(at > last for at, each in enumerate(copied) if each.segment == segment)
    assert ([], stored) == await run(known, stored, 10_000), "nothing is left"


@pytest.mark.parametrize("stored", [b"", b"text", b"\x93\x05\x01\xa1x", b"\x99\xa1\xff" + bytes(8)])
def test_the_position_of_another_program_is_none_of_a_copy(stored: bytes) -> None:
    assert decode_copy(stored) is None


def test_a_copy_whose_position_would_be_too_large_does_not_begin() -> None:
    def begin(segments: int) -> None:
        ends = [cli_client.segment(number, 0, 65_535, next_offset=10**9) for number in range(segments)]
        CopyProgress(
            Snapshot(cli_client.topic("orders", *ends), LEDGER_ID, 2**32, 2**62), dict.fromkeys(range(segments), 0)
        )

    begin(150)
    with pytest.raises(
        HeadgateError, match=f"200 segments to copy.* of at most {MAX_POSITION_BYTES}: copy it with a program"
    ):
        begin(200)
