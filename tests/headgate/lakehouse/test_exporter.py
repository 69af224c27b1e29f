"""Each record is in the table once, whatever ends the runs, and what cannot be continued is refused."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.chunk_writer.builder import ChunkBuilder
from headgate.client.topic_source import TopicSource
from headgate.errors import HeadgateError, LedgerError
from headgate.lakehouse.exporter import Exporter
from headgate.lakehouse.table_rows import TableRows
from headgate.lakehouse.tables import TableConflictError
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path, snapshot_path
from headgate.reading.topic_position import TopicPosition
from headgate.views.topics import TopicInfo
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.positioned_ledger import CHUNKS, LedgerWithPositions, possible

LEDGER_ID = "0123456789abcdef" * 2


class CrashError(Exception):
    """The process was killed."""


class MemoryTable:
    """A table that outlives the exports, and the handle that each of them opens."""

    name = "table orders"

    def __init__(self, commits: list[tuple[TopicPosition, pa.Table]], crashes: Iterator[str | None]) -> None:
        self._commits = commits
        self._crashes = crashes
        self._seen = len(commits)
        self.position = commits[-1][0] if commits else None

    def append(self, rows: pa.Table, position: TopicPosition) -> None:
        crash = next(self._crashes, None)
        if crash == "before":
            raise CrashError
        if self._seen != len(self._commits):
            raise TableConflictError(self.name)
        self._commits.append((position, rows))
        if crash == "after":
            raise CrashError
        self._seen, self.position = len(self._commits), position


def export(known: LedgerWithPositions, table: MemoryTable, topic: TopicInfo | None = None, **given: Any) -> Exporter:
    async def described() -> TopicInfo:
        return topic or known.description()

    source = TopicSource(known.description(), known.ledger, LEDGER_ID, newest_chunk=1, describe=described)
    options = {"commit_bytes": 1, "skip_pruned": False} | given
    return Exporter(source, table, TableRows(None, by_day=False), **options)


async def run(exporter: Exporter) -> None:
    await exporter.run(*await exporter.plan(), lambda: None)


@given(
    CHUNKS,
    st.lists(st.sampled_from([None, "before", "after"]), max_size=30),
    st.integers(0, 21),
    st.sampled_from([1, 500, 10**6]),
)
async def test_each_record_is_in_the_table_once(chunks, crashes: list[str | None], compacted: int, commit_bytes: int):
    """Processes end before and after any commit. Records, splits, a compaction and another export come between."""
    known, commits, left = LedgerWithPositions(), [], iter(crashes)
    await known.write(1)
    stale, following = (export(known, MemoryTable(commits, left)) for _ in range(2))
    for time, steps in enumerate(chunks, 1):
        await known.write(10 * time, *possible(known, steps))
        if time == compacted:
            await known.compact(known.state.chunk)
            await known.write(10 * time + 1)
            await known.ledger.store.create(snapshot_path(0, known.state.chunk), b"")
        if time % 3 == 0:
            try:
                await run(following)
            except (CrashError, TableConflictError):
                following = export(known, MemoryTable(commits, left), commit_bytes=commit_bytes)
    await run(export(known, MemoryTable(commits, iter(()))))
    before = len(commits)
    try:
        await run(stale)  # It read its position before all others, and all of its commits come too late.
    except (TableConflictError, CrashError):
        assert before
    assert before == len(commits) or before == 0
    stored = [
        (segment, offset)
        for segment, tail in known.state.topics["t"].tails.items()
        for offset in range(tail.next_offset)
    ]
    found = [
        (row["segment"], row["offset"]) for _, rows in commits for row in rows.select(["segment", "offset"]).to_pylist()
    ]
    assert sorted(stored) == sorted(found)
    if commits:
        assert commits[-1][0].newest >= max(segment for segment, _ in found)


async def test_an_export_that_continues_reads_what_is_new_only() -> None:
    """It read all chunks that are not compacted, each time: a thousand objects of a bucket a minute."""
    known, commits = LedgerWithPositions(), []
    for at_ms in range(50):
        await known.write(at_ms, 0, 1)
    following = export(known, MemoryTable(commits, iter(())))
    reads = known.ledger.store.calls
    await run(following)
    before = reads["read"]
    await known.write(50, 0, "split", 2)
    await run(following)
    assert 102 == sum(len(rows) for _, rows in commits)
    assert reads["read"] - before < 8


@pytest.mark.parametrize("newest", [4, 3])
async def test_nothing_is_added_once_an_older_ledger_was_put_back(newest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk 4 was the newest one when it was looked for, or was written before the topic was described."""
    known, commits, rows_of = LedgerWithPositions(), [], TableRows.table
    for at_ms in range(1, 5):
        await known.write(at_ms, 0)
    exporter = export(known, MemoryTable(commits, iter(())), commit_bytes=10**6)
    now, starts = await exporter.plan()

    def put_back(*given: Any) -> pa.Table:
        other = ChunkBuilder().encode(shard=0, number=4, leader_epoch=1, at_ms=4, term_id=77)
        known.ledger.store.objects[chunk_path(0, 4)] = other
        return rows_of(*given)

    monkeypatch.setattr(TableRows, "table", put_back)
    with pytest.raises(HeadgateError, match="an older ledger was put back while 't' was exported"):
        await exporter.run(now._replace(chunk=newest), starts, lambda: None)
    assert not commits


async def test_what_cannot_be_continued_is_refused() -> None:
    known, commits = LedgerWithPositions(), []
    await known.write(1)
    await known.write(2, 0, 1)
    table = partial(MemoryTable, commits, iter(()))
    await run(export(known, table()))
    described = known.description()
    await known.write(3, 0)

    async def refused(reason: str, topic: TopicInfo | None = None, **given: Any) -> None:
        with pytest.raises(HeadgateError, match=reason):
            await export(known, table(), topic, **given).plan()

    pruned = replace(described, segments=described.segments[1:])
    await refused("table orders cannot continue: segment 0 .* was read up to offset 1, and pruned since", pruned)
    assert {1: 1} == (await export(known, table(), pruned, skip_pruned=True).plan())[1]
    await refused(
        "was deleted and created again: .*, and other records; export to another table$", replace(described, topic_id=3)
    )
    position, rows = commits[-1]
    commits[-1] = replace(position, term_id=77), rows
    await refused("the ledger does not have chunk 2 as it was .*: an older ledger was put back; export to another")
    commits[-1] = replace(position, ledger_id="f" * 32), rows
    await refused("table orders cannot continue: .* is of the ledger with the id f{32}")


async def with_a_pruned_segment(
    commits: list[Any], *, pruned: int = 1, gone: Sequence[str] = ("segment=0",), topic_id: int = 1, **given: Any
) -> tuple[Exporter, Any]:
    """Return an export, and its plan, after which so many segments are ``pruned``, and objects ``gone``."""
    known = LedgerWithPositions()
    await known.write(1, 0)
    await known.write(2, 0, 1)
    await known.compact(2)
    await known.write(3, 1, "split", 2)
    await known.write(4)
    await known.ledger.store.create(snapshot_path(0, 2), b"")
    planned = await export(known, MemoryTable(commits, iter(()))).plan()
    kept = replace(known.description(), topic_id=topic_id, segments=known.description().segments[pruned:])
    for path in [path for path in known.ledger.store.objects if any(part in path for part in gone)]:
        await known.ledger.store.delete(path)
    return export(known, MemoryTable(commits, iter(())), kept, commit_bytes=10**6, **given), planned


@pytest.mark.parametrize("skip_pruned", [False, True])
async def test_a_segment_that_is_pruned_meanwhile_does_not_keep_the_others_from_the_table(skip_pruned: bool) -> None:
    """Without --skip-pruned the run says at its end what was lost."""
    commits: list[Any] = []
    exporter, planned = await with_a_pruned_segment(commits, skip_pruned=skip_pruned)
    if skip_pruned:
        await exporter.run(*planned, lambda: None)
    else:
        with pytest.raises(HeadgateError, match="segment 0 from offset 0 on of topic 't' was pruned while it was"):
            await exporter.run(*planned, lambda: None)
    assert {0: 0} == exporter.pruned
    assert [(1, 0), (1, 1), (2, 0)] == [
        (row["segment"], row["offset"]) for _, rows in commits for row in rows.select(["segment", "offset"]).to_pylist()
    ]
    assert 0 in commits[-1][0].offsets, "the next run without --skip-pruned is refused"


async def test_a_segment_that_is_pruned_once_the_table_has_it_is_not_named() -> None:
    exporter, planned = await with_a_pruned_segment([], pruned=2, gone=["segment=1"], skip_pruned=True)
    await exporter.run(*planned, lambda: None)
    assert {1: 0} == exporter.pruned


@pytest.mark.parametrize(
    ("change", "pruned"), [({"topic_id": 9}, {}), ({"gone": ("segment=0", chunk_path(0, 3))}, {0: 0})]
)
async def test_what_a_prune_does_not_explain_ends_the_export(change: dict[str, Any], pruned: dict[int, int]) -> None:
    """The topic was created again, or objects of other segments are missing as well."""
    exporter, planned = await with_a_pruned_segment([], skip_pruned=True, **change)
    with pytest.raises(LedgerError):
        await asyncio.wait_for(exporter.run(*planned, lambda: None), 60)
    assert pruned == exporter.pruned


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ([1, 2, 3, 4, 5], [11, 11, 22, 22, 22, None]),
        ([1, 3, 5], [11, 11, 22, 22, 22, None]),
        ([1, 3], [11, 11, 22, None, None, None]),
    ],
    ids=["all chunks", "a trimmed ledger", "an older ledger"],
)
async def test_a_ledger_tells_which_term_wrote_a_chunk_that_was_trimmed(kept: list[int], found: list[int | None]):
    ledger, before = Ledger(FakeStore(latency_seconds=(0, 0)), 0), 0
    for number, term in enumerate((11, 11, 22, 22, 22), 1):
        if number in kept:
            data = ChunkBuilder().encode(
                shard=0, number=number, leader_epoch=1, at_ms=number, term_id=term, previous_term_id=before
            )
            await ledger.append(number, data)
        before = term
    assert found == [await ledger.term_id_at(number) for number in range(1, 7)]
