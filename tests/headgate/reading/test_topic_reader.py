"""The records of a whole topic: order, bounds, the last ones, new ones, and damaged ledgers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from headgate.client.topic_source import TopicSource
from headgate.errors import HeadgateError, LedgerError, PositionOutOfRangeError, StoreUnavailableError
from headgate.ledger.chunk import RecordColumns
from headgate.ledger.objects import chunk_path, snapshot_path
from headgate.process.background import cancel_and_wait
from headgate.reading.stored_rows import LedgerRecord, select_offsets
from headgate.reading.tail import Head
from headgate.reading.topic_position import MAX_POSITION_BYTES, CopyProgress, Snapshot, beginning, decode_copy
from headgate.reading.topic_reader import TopicReader
from headgate.views.topics import TopicInfo
from tests.headgate.cli.records.test_read import never
from tests.support.fakes import cli_client
from tests.support.logged import errors_of
from tests.support.samples import positioned_ledger
from trials.compaction import compact

Place = tuple[int, int]
"""Segment and offset."""


def reader(
    known: positioned_ledger.LedgerWithPositions, starts: dict[int, int] | None = None, **options
) -> TopicReader:
    described = known.description()
    return TopicReader(
        known.ledger,
        described,
        starts=dict.fromkeys((each.segment for each in described.segments), 0) if starts is None else starts,
        **options,
    )


async def places(records: AsyncGenerator[LedgerRecord]) -> list[Place]:
    return [(record.segment, record.offset) async for record in records]


async def written(*chunks: tuple[positioned_ledger.Step, ...]) -> positioned_ledger.LedgerWithPositions:
    """Return a ledger with these chunks, one per 10 ms."""
    known = positioned_ledger.LedgerWithPositions()
    for number, steps in enumerate(chunks, 1):
        await known.write(10 * number, *steps)
    return known


async def test_records_come_in_the_order_in_which_they_were_stored():
    known = await written((0, 1, 0), (1,), ("split",), (3, 2, 1))
    await known.write(100, 0, topic_id=9)

    assert [(0, 0), (1, 0), (0, 1), (1, 1), (3, 0), (2, 0), (1, 2)] == await places(reader(known).stored())


async def test_records_after_the_description_are_not_read_and_chunks_after_its_end_neither():
    known = await written((0,), (1,))
    bounded = reader(known)
    for time in range(50, 350, 10):
        await known.write(time, 0)
    reads = known.ledger.store.calls["read"]

    assert [(0, 0), (1, 0)] == await places(bounded.stored())
    assert 9 >= known.ledger.store.calls["read"] - reads
    await known.write(400, "split")
    await known.write(410, 2)
    assert await bounded.continue_to(known.description())
    assert (2, 0) in await places(bounded.stored())


async def test_a_start_at_a_time_skips_older_chunks():
    known = await written(*[(0,)] * 200)
    starts = await known.positions(1900)
    reads = known.ledger.store.calls["read"]

    assert [(0, offset) for offset in range(189, 200)] == await places(
        reader(known, {0: starts[0]}, stored_at_ms=1900).stored()
    )
    assert 30 > known.ledger.store.calls["read"] - reads


@given(positioned_ledger.CHUNKS, st.integers(0, 21), st.integers(0, 200))
async def test_any_ledger_from_any_time(chunks, compacted: int, at_ms: int):
    """Every record once, a segment by offset, and no record of a child before one of its ancestors."""
    known = await positioned_ledger.any_ledger(chunks, positioned_ledger.PAIRS_OF_CHUNKS, compacted)
    starts = await known.positions(at_ms)
    found = await places(reader(known, starts, stored_at_ms=at_ms).stored())

    topic = known.state.topics["t"]
    for segment, tail in topic.tails.items():
        own = [offset for number, offset in found if number == segment]
        assert list(range(starts[segment], tail.next_offset)) == own
        for ancestor in topic.layout.ancestors(segment):
            last = max((at for at, (number, _) in enumerate(found) if number == ancestor), default=-1)
            assert all(at > last for at, (number, _) in enumerate(found) if number == segment)
    everything = await places(reader(known).stored())
    records = [record._asdict() async for record in reader(known, starts).stored()]
    batches = [rows.arrow() async for rows in reader(known, starts).stored_rows()]
    assert records == [as_record(row) for batch in batches for row in batch.to_struct_array().to_pylist()]
    ends = {segment: (starts[segment] + tail.next_offset) // 2 for segment, tail in topic.tails.items()}
    half = await places(reader(known, starts, ends=ends).stored())
    assert [each for each in found if each[1] < ends[each[0]]] == half
    counted = known.at[len(known.at) // 2][1]  # by an older description
    older = {segment: max(start, counted.get(segment, 0)) for segment, start in starts.items()}
    continued = reader(known, starts, ends=older)
    begun = await places(continued.stored())
    assert await continued.continue_to(known.description())
    assert sorted(found) == sorted(begun + await places(continued.stored()))
    for count in (0, 1, 3, 100):
        assert everything[len(everything) - min(count, len(everything)) :] == [
            each[:2] for each in await reader(known).tail(count)
        ]


def as_record(row: dict) -> dict:
    """Return the fields of `LedgerRecord` from those of an Arrow row."""
    headers = tuple((each["name"], each["value"]) for each in row.pop("headers") or ())
    return row | {"headers": headers, "timestamp_ms": int(row.pop("timestamp").timestamp() * 1000)}


async def test_following_continues_with_new_records_and_segments():
    known = await written((0, 1), (1,))
    head = Head()
    following = reader(known).follow(head)
    assert [(0, 0), (1, 0), (1, 1)] == [(await anext(following))[:2] for _ in range(3)]

    await known.write(60, "split")
    await known.write(70, 2)
    head.advance(4)
    assert (2, 0) == (await anext(following))[:2]

    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(30)
    await known.write(80, 3)  # its announcement is lost
    assert (3, 0) == (await waiting)[:2]
    await following.aclose()


async def test_a_follower_of_an_idle_shard_asks_the_store_seldom():
    known = await written((0,))
    following = reader(known).follow(Head())
    await anext(following)
    waiting = asyncio.ensure_future(anext(following))
    before = known.ledger.store.calls["read"]
    await asyncio.sleep(3600)
    assert known.ledger.store.calls["read"] - before < 130, "two in a minute: no leader states that nothing is new"
    await cancel_and_wait(waiting)


@pytest.mark.parametrize("compacted", [False, True])
async def test_following_ends_where_an_older_ledger_was_put_back_and_has_grown_again(compacted: bool):
    known = await written((0,), (0,))
    following = reader(known).follow(Head())
    assert [(0, 0), (0, 1)] == [(await anext(following))[:2] for _ in range(2)]

    if compacted:
        await known.write(60, 0)
    number, term = known.state.chunk + 1, {"leader_epoch": 1, "term_id": 77, "previous_term_id": 77}
    await known.ledger.append(number, ChunkBuilder().encode(shard=0, number=number, at_ms=70, **term))
    if compacted:
        await known.compact(3)
        await known.ledger.delete(3)
    with pytest.raises(LedgerError, match="an older one was put back"):
        await anext(following)


async def test_following_ends_only_if_every_segment_that_is_read_is_sealed():
    known = await written((0, 1), (0,), ("split",))
    for starts, ends in (({0: 0}, True), ({0: 0, 1: 0}, False), ({1: 0}, False)):
        assert ends == reader(known, starts, only_started=True).end_at(known.description())
    sealed = reader(known, {0: 0}, only_started=True)
    following = sealed.follow(Head())
    assert (0, 0) == (await anext(following))[:2]
    assert sealed.end_at(known.description())
    assert [(0, 1)] == await places(following)


async def test_an_outage_of_the_store_while_a_topic_is_followed_is_one_error_and_then_it_reads_on(caplog):
    known = await written((0,))
    following = reader(known).follow(Head())
    await anext(following)
    known.ledger.store.fail_next("unavailable", "read", times=5)
    await known.write(60, 0)
    await anext(following)
    assert ["topic.unreadable"] == errors_of(caplog)


async def test_what_is_read_before_it_is_announced_is_made_durable_first():
    known = await written((0,))
    known.ledger.store.fail_next("unavailable", "make_durable")
    with pytest.raises(StoreUnavailableError):
        await reader(known).tail(1)

    following = reader(known).follow(Head())
    assert (0, 0) == (await anext(following))[:2]
    await known.write(60, 0)
    known.ledger.store.fail_next("unavailable", "make_durable")
    before = known.ledger.store.calls["make_durable"]
    assert (0, 1) == (await anext(following))[:2]
    assert before + 2 == known.ledger.store.calls["make_durable"]
    await following.aclose()


async def test_following_survives_compaction_a_forged_head_and_an_outage_of_the_store():
    known = await written((0,))
    head = Head()
    following = reader(known).follow(head)
    assert (0, 0) == (await anext(following))[:2]

    head.advance(1000)
    for time in (60, 70):
        await known.write(time, 0)
    await known.compact(3)
    known.ledger.store.fail_next("unavailable", "read")
    assert [(0, 1), (0, 2)] == [(await anext(following))[:2] for _ in range(2)]
    await following.aclose()


async def test_chunks_that_compaction_deletes_meanwhile_are_read_from_its_objects():
    known = await written(*[(0,)] * 20)
    reading = reader(known).stored()
    assert (0, 0) == (await anext(reading))[:2]
    await known.compact(18)

    assert [(0, offset) for offset in range(1, 20)] == await places(reading)


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 3, "split"]), max_size=4), min_size=4, max_size=30), st.randoms())
async def test_a_reader_gets_each_record_once_while_compaction_and_trimming_run(chunks, rng):
    """After each object that is read, all ranges may be replaced by a wider one, and everything else deleted."""
    known = positioned_ledger.LedgerWithPositions()
    for time, steps in enumerate(chunks, 1):
        await known.write(10 * time, *(positioned_ledger.possible(known, steps) if time > 1 else ()))
    newest, objects = known.state.chunk, known.ledger.store.objects
    whole = await places(reader(known).stored())
    kept = {path: data for path, data in objects.items() if path.startswith("chunks/")}
    last, found = 0, []
    async with aclosing(reader(known).stored_rows()) as reading:
        async for rows in reading:
            found += [record[:2] for record in rows.records()]
            if last < newest and rng.random() < 0.5:
                last = rng.randint(last + 1, newest)
                objects.clear()
                objects.update(kept)
                await known.compact(last)
    assert sorted(whole) == sorted(found)
    for segment in {segment for segment, _ in whole}:
        assert [each for each in whole if each[0] == segment] == [each for each in found if each[0] == segment]


@pytest.mark.parametrize(
    ("lost", "segments", "text"),
    [
        ("compacted", [1], "segment 0 was pruned while it was read, and its records from offset 2 on are deleted"),
        ("compacted", [0, 1], "part=2/x.parquet does not exist, and nothing replaces it, although segment 0 exists"),
        ("chunk", [0, 1], "chunk 5 of shard 0 is missing, and nothing replaces it, although segment 0 exists"),
        ("compacted", None, "topic 't' was deleted and created again, and its former records are deleted"),
    ],
    ids=["pruned", "lost", "lost chunk", "created again"],
)
async def test_what_stays_missing_is_explained_by_the_present_layout(lost: str, segments: list | None, text: str):
    known = await written(*[(0,)] * 6)
    described = known.description()
    await compact(known.ledger, 1, 4, parts=4)

    async def present() -> TopicInfo:
        kept = tuple(each for each in described.segments if segments is None or each.segment in segments)
        return msgspec.structs.replace(described, segments=kept, topic_id=2 if segments is None else 1)

    reading = reader(known, describe=present).stored()
    assert (0, 0) == (await anext(reading))[:2]
    for path in list(known.ledger.store.objects):
        if ("/part=" in path and "/part=0" not in path) if lost == "compacted" else path.endswith("05.parquet"):
            await known.ledger.store.delete(path)
    with pytest.raises(LedgerError, match=text):
        await places(reading)


async def test_the_next_object_is_read_while_one_is_used():
    """In a bucket each read takes a while."""
    known = await written(*[(0,)] * 20)
    await compact(known.ledger, 1, 20, parts=20)
    known.ledger.store.latency_seconds = (1.0, 1.0)
    began = asyncio.get_running_loop().time()

    async for _ in reader(known).stored_rows():
        await asyncio.sleep(1)
    assert 30 > asyncio.get_running_loop().time() - began


async def test_records_that_the_leader_counts_and_the_ledger_lacks_are_an_error():
    """As the end, they would look like no records."""
    known = await written((0,), (0,))
    other = await written((0,))

    with pytest.raises(LedgerError, match="segment 0 ends at offset 1 in the ledger, and its leader counts 2"):
        await places(TopicReader(other.ledger, known.description(), starts={0: 0}).stored())


async def test_a_gap_between_offsets_is_an_error():
    known = await written((0,), (0,))
    with pytest.raises(LedgerError, match="continues at offset 1, expected 0: records are missing"):
        await places(reader(known, first_chunk=2).stored())


@pytest.mark.parametrize(("topics", "offsets"), [([1, 1], [0, 2]), ([1, 9], [0, 1])], ids=["gap", "other topic"])
async def test_a_chunk_with_records_that_do_not_count_is_not_taken_for_whole(topics: list[int], offsets: list[int]):
    known, builder, path = await written((0, 0, 0)), ChunkBuilder(), chunk_path(0, 1)
    builder.records.extend(RecordColumns(topics, [0, 0], offsets, [0, 0], [b"k"] * 2, [b""] * 2, [(), ()]))
    known.ledger.store.objects[path] = builder.encode(shard=0, number=1, leader_epoch=1, at_ms=1)
    with pytest.raises(LedgerError, match=r"continues at offset 1, expected 0|ends at offset 1 in the ledger"):
        await places(reader(known, {0: 0}).stored())


@pytest.mark.parametrize("follows", [False, True])
async def test_a_reader_that_is_left_early_closes_what_it_reads(follows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the garbage collector decides when."""
    known = await written(*[(0,)] * 20)
    await known.compact(known.state.chunk)
    whole_pass, closed = TopicReader._pass, []

    async def recorded(reader: TopicReader) -> AsyncGenerator[LedgerRecord]:
        try:
            async for record in whole_pass(reader):
                yield record
        finally:
            closed.append(True)

    monkeypatch.setattr(TopicReader, "_pass", recorded)
    records = reader(known).follow(Head()) if follows else reader(known).stored()
    async with aclosing(records):
        await anext(records)

    assert closed


# Which offsets a reader of a topic wants.


@pytest.fixture(scope="module")
def topic() -> TopicInfo:
    """Segment 0 was pruned, 1 has two records, 2 has none and 3 has one."""

    async def write() -> TopicInfo:
        known = positioned_ledger.LedgerWithPositions()
        for steps in ((0, 1, 1), ("split",), (3,)):
            await known.write(10, *steps)
        return known.description()

    described = asyncio.run(write())
    kept = [each for each in described.segments if each.segment != 0]
    return TopicInfo(
        topic="t", topic_id=1, shard=0, layout_epoch=1, segments=tuple(kept), subscriptions=described.subscriptions
    )


@pytest.mark.parametrize(
    ("offsets", "selected"),
    [
        pytest.param(None, {1: (0, 2), 2: (0, 0), 3: (0, 1)}, id="all"),
        pytest.param({3: (0, None), 1: (1, None)}, {1: (1, 2), 3: (0, 1)}, id="from an offset to the end"),
        pytest.param({1: (0, 1)}, {1: (0, 1)}, id="up to an offset"),
        pytest.param({1: (2, None)}, {1: (2, 2)}, id="none, at the end"),
        pytest.param({}, {}, id="no segment"),
    ],
)
def test_offsets(topic: TopicInfo, offsets: dict | None, selected: dict) -> None:
    assert list(selected.items()) == list(select_offsets(topic, offsets).items())


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        pytest.param(
            {0: (0, 5)},
            "segment 0 of topic 't' was pruned, and its records were deleted; "
            "its segments, and their offsets, are 1 (0 to 2), 2 (0 to 0), 3 (0 to 1)",
            id="pruned",
        ),
        pytest.param({9: (0, None)}, "topic 't' has no segment 9; its segments", id="never existed"),
        pytest.param({1: (3, None)}, "segment 1 of topic 't' ends at offset 2: choose 0 to 2", id="behind the end"),
        pytest.param({1: (0, 3)}, "ends at offset 2", id="up to behind the end"),
        pytest.param({1: (-1, 1)}, "choose 0 to 2", id="negative"),
        pytest.param({1: (2, 1)}, "choose 0 to 2", id="backwards"),
    ],
)
def test_offsets_that_do_not_exist(topic: TopicInfo, offsets: dict, text: str) -> None:
    with pytest.raises(PositionOutOfRangeError) as caught:
        select_offsets(topic, offsets)
    assert text in str(caught.value)


# A copy in any number of runs has each record once, each key in order, with small positions.


LEDGER_ID = "0123456789abcdef" * 2


async def begun(known: positioned_ledger.LedgerWithPositions, stored: bytes | None) -> CopyProgress:
    topic = known.description()
    source = TopicSource(topic, known.ledger, LEDGER_ID, newest_chunk=1, describe=never)
    position = beginning(topic, LEDGER_ID) if stored is None else decode_copy(stored)
    assert position is not None
    now = Snapshot(topic, LEDGER_ID, *await source.newest())
    return CopyProgress(now, await source.starts_after(position, now, remedy=""))


async def run(
    known: positioned_ledger.LedgerWithPositions, stored: bytes | None, limit: int
) -> tuple[list[LedgerRecord], bytes | None]:
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


@given(positioned_ledger.CHUNKS, st.lists(st.integers(0, 30), max_size=4), st.integers(0, 21))
async def test_each_record_is_copied_once_in_any_number_of_runs(chunks, limits: list[int], compacted: int) -> None:
    """Runs end at any record, and records, splits and a compaction come between them."""
    known = positioned_ledger.LedgerWithPositions()
    await known.write(1)
    copied: list[LedgerRecord] = []
    stored: bytes | None = None
    pauses = dict(zip(range(2, 100, 3), limits, strict=False))
    for time, steps in enumerate(chunks, 1):
        await known.write(10 * time, *positioned_ledger.possible(known, steps))
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
