"""What a task writes, without Spark: the records of each segment in order, in objects of a bounded size."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.backlog.aggregates import FACTS, SCHEMA, aggregate, contributions
from drain.compaction import object_writer
from drain.compaction.object_writer import RECORD_COLUMNS, write_compacted
from drain.spark.object_reader import ReadLimits, read_objects
from headgate.ledger.chunk import decode_records
from headgate.ledger.compacted import CompactedObject, decode_compacted
from tests.support.samples.chunks import record_rows
from tests.support.samples.ledgers import RandomLedger, WrittenLedger

LARGE = 1 << 30
ORDER = [(name, "ascending") for name in SCHEMA.names]


class Payloads(RandomLedger):
    """Random bytes in keys and values, empty ones too."""

    def store(self, topic_id: int, segment: int, count: int) -> None:
        super().store(topic_id, segment, count)
        records = self._builder.records
        for index in range(count):
            records.key[-1 - index] = self.rng.randbytes(self.rng.choice((0, 1, 20)))
            records.value[-1 - index] = self.rng.randbytes(self.rng.choice((0, 3, 300)))


def alive(ledger: WrittenLedger) -> set[tuple[int, int]]:
    return {(topic.topic_id, segment) for topic in ledger.state.topics_by_id.values() for segment in topic.tails}


def written(ledger: WrittenLedger, paths: list[tuple[str, int | None]], folder: str, **limits: int) -> pa.Table:
    limits = {"object_bytes": LARGE} | limits
    return pa.Table.from_batches(write_compacted(ledger.url, folder, [paths], alive=alive(ledger), **limits))


def chunks_of(ledger: WrittenLedger) -> list[tuple[str, int | None]]:
    return [(str(ledger.path(number).relative_to(ledger.root)), None) for number in range(1, ledger.state.chunk + 1)]


def objects_in(found: pa.Table) -> dict[tuple[int, int], list[CompactedObject]]:
    by_segment = defaultdict(list)
    for row in found.filter(found["path"].is_valid()).select(CompactedObject.__struct_fields__).to_pylist():
        by_segment[row["topic_id"], row["segment"]].append(CompactedObject(**row))
    return {key: sorted(items, key=lambda item: item.first_offset) for key, items in by_segment.items()}


def records_of(ledger: WrittenLedger, items: list[CompactedObject]) -> list[dict[str, Any]]:
    """Return the records of compacted objects, which their readers get, too, and which are as described."""
    found = []
    for item in items:
        data = (ledger.root / item.path).read_bytes()
        table = pq.read_table(pa.BufferReader(data))
        assert table.column_names == list(RECORD_COLUMNS)
        rows = table.to_pylist()
        assert len(decode_compacted(data, item)) == len(rows)
        assert (item.first_offset, item.end_offset) == (rows[0]["offset"], rows[-1]["offset"] + 1)
        assert (item.first_at_ms, item.last_at_ms) == (rows[0]["stored_at_ms"], rows[-1]["stored_at_ms"])
        assert item.size_bytes == sum(row["size_bytes"] for row in rows)
        found += rows
    return found


def records_by_segment(ledger: WrittenLedger) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found = defaultdict(list)
    for number in range(1, ledger.state.chunk + 1):
        header, records = decode_records(ledger.path(number).read_bytes(), shard=ledger.shard, number=number)
        for row in record_rows(records):
            size_bytes = len(row["key"]) + len(row["value"]) + sum(len(n) + len(v) for n, v in row["headers"])
            headers = [{"name": name, "value": value} for name, value in row["headers"]] or None
            more = {"stored_at_ms": header.at_ms, "size_bytes": size_bytes, "headers": headers}
            found[row["topic_id"], row["segment"]].append({name: (row | more)[name] for name in RECORD_COLUMNS})
    return found


@pytest.mark.parametrize(
    ("seed", "limits"),
    [(1, {}), (2, {"object_bytes": 40}), (3, {"waiting_bytes": 2000}), (4, {"object_bytes": 30, "waiting_bytes": 900})],
)
def test_objects_contain_what_chunks_do_and_merged_ones_too(
    tmp_path: Path, seed: int, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Payloads(tmp_path, seed)
    ledger.grow(40)
    chunks = chunks_of(ledger)
    monkeypatch.setattr(
        object_writer, "read_objects", lambda *given: read_objects(*given, ReadLimits(rows_per_batch=9))
    )
    found = written(ledger, chunks, "first", **limits)
    objects = objects_in(found)
    expected = records_by_segment(ledger)

    assert objects.keys() == expected.keys() & alive(ledger)
    for key, items in objects.items():
        assert records_of(ledger, items) == expected[key]
        assert all(item.size_bytes < limits.get("object_bytes", LARGE) + 400 for item in items)
    assert (len(limits) > 0) == any(len(items) > 1 for items in objects.values())
    facts = pa.Table.from_batches(read_objects(ledger.url, chunks, FACTS))
    counted = aggregate(found.filter(found["path"].is_null()).select(SCHEMA.names))
    assert counted.sort_by(ORDER) == aggregate(contributions(facts), in_order=True).sort_by(ORDER)
    again = [(item.path, item.checksum) for items in objects.values() for item in items]
    merged = objects_in(written(ledger, again, "second"))
    assert {key: expected[key] for key in objects} == {key: records_of(ledger, items) for key, items in merged.items()}
    assert all(len(items) == 1 for items in merged.values())


def test_a_segment_that_waits_keeps_no_record_of_others_in_memory(tmp_path: Path) -> None:
    ledger = WrittenLedger(tmp_path)
    topic = ledger.topic(2)
    ledger.store(topic, 0, 1)
    ledger.store(topic, 1, 500)
    ledger.commit()
    (batch,) = read_objects(ledger.url, chunks_of(ledger)[:1], object_writer._RECORDS)
    (_, quiet), (_, busy) = object_writer._by_segment(batch.filter(batch.column("offset").is_valid()), alive(ledger))

    assert (len(quiet), len(busy)) == (1, 500)
    assert quiet.get_total_buffer_size() < busy.get_total_buffer_size() / 20
