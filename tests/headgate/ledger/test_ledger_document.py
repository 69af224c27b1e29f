"""docs/ledger.md describes the format completely and correctly."""

import typing
from pathlib import Path
from unittest.mock import Mock

import msgspec.inspect
import pyarrow.parquet
import pytest

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger import compacted
from headgate.ledger.chunk import COLUMNS, FORMAT, ChunkHeader, facts_of
from headgate.ledger.objects import CHUNKS_FOLDER, chunk_folder, chunk_name
from headgate.model import entries as e
from headgate.model.layout import Layout
from tests.support.documents.markdown import sections, ticked
from tests.support.samples.positioned_ledger import trimmed_ledger

ENTRIES = typing.get_args(e.AnyEntry)
TOPIC = {"topic_id": 1}
SUBSCRIPTION = {"topic_id": 1, "subscription_id": 2}


@pytest.fixture(scope="module")
def document():
    return sections("ledger.md")


def _sample_entries() -> list[tuple[e.Entry, Layout | None]]:
    """One entry for each fact that an entry states, with the layout after it."""
    layout = Layout.initial(2, 0)
    return [
        (e.RecordsAcknowledged(**SUBSCRIPTION, seek_generation=0, ranges=[e.AcknowledgedRange(0, 0, 5)]), None),
        (e.TopicCreated(**TOPIC, topic="t", segments=2, token="x"), layout),
        (
            e.TopicImported(
                **TOPIC,
                topic="t",
                token="x",
                positions="opaque",
                segments=[e.ImportedSegment(segment=0, label="a", end_offset=1)],
            ),
            None,
        ),
        (e.LayoutExtended(**TOPIC, token="x", created=[e.ImportedSegment(segment=1, label="b")], sealed={0: 1}), None),
        (e.SegmentSplit(**TOPIC, segment=0, end_offset=5, token="x"), layout.split(0, 5, 0)),
        (e.SegmentRolled(**TOPIC, segment=0, end_offset=5, reason="x"), layout.roll(0, 5, 0)),
        (
            e.SegmentsMerged(**TOPIC, segments=(0, 1), end_offsets=(5, 6), token="x"),
            layout.merge(0, 1, {0: 5, 1: 6}, 0),
        ),
        (e.SegmentsPruned(**TOPIC, segments=[0]), None),
        (e.TopicDeleted(**TOPIC, token="x"), None),
        (
            e.SubscriptionCreated(
                **SUBSCRIPTION, subscription="s", subscription_type="STREAM", order="strict", positions={0: 3}
            ),
            None,
        ),
        (e.SubscriptionConfigured(**SUBSCRIPTION, subscription_type="QUEUE", order="none"), None),
        (e.SubscriptionSeek(**SUBSCRIPTION, seek_generation=1, positions={0: 1}, token="x"), None),
        (e.SubscriptionDeleted(**SUBSCRIPTION, token="x"), None),
    ]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A ledger of three chunks: a topic with two records and an acknowledgement."""
    root = tmp_path_factory.mktemp("ledger")
    folder = root / chunk_folder(3)
    folder.mkdir(parents=True)
    chunks = [ChunkBuilder() for _ in range(3)]
    chunks[0].add(e.TermStarted(leader_epoch=1, instance="a"))
    chunks[1].add(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="x"), Layout.initial(1, 0))
    columns = chunks[2].records
    columns.topic_id, columns.segment, columns.offset = [1, 1], [0, 0], [0, 1]
    columns.timestamp_ms, columns.key, columns.value = [7, 8], [b"k", b"k"], [b"v1", b"v2"]
    columns.headers = [(("a", b"1"),), (("b", b"2"),)]
    chunks[2].add(e.RecordsStored(topic_id=1, count=2, placements=[e.Placement(0, 0, 65535, 0, 2)], size_bytes=6))
    for number, chunk in enumerate(chunks, start=1):
        (folder / chunk_name(number)).write_bytes(chunk.encode(shard=3, number=number, leader_epoch=1, at_ms=number))
    return root / CHUNKS_FOLDER


def test_the_column_table_is_the_schema(document) -> None:
    described = [(ticked(name)[0], kind) for name, kind, _ in document["Columns"].table()]

    assert described == list(COLUMNS.items())


def test_the_header_table_is_the_header(document) -> None:
    described = [(ticked(name)[0], kind) for name, kind, _ in document["Header"].table()]

    assert described == [(name, kind.__name__) for name, kind in typing.get_type_hints(ChunkHeader).items()]
    assert f"version of this format: {FORMAT}" in document["Header"].table()[0][2]
    assert (
        f"chunks/shard=0000/000000000001.parquet has format {FORMAT - 1}, this version of headgate reads format {FORMAT};"
        in " ".join(document["Header"].lines)
    )
    assert f"| `format` | {compacted.FORMAT} |" in document["Compacted objects"].lines


def test_every_fact_is_described_with_the_columns_that_it_sets(document) -> None:
    stated: dict[str, set[str]] = {}
    for entry, layout in _sample_entries():
        for row in facts_of(entry, layout):
            stated.setdefault(row["fact"], set()).update(row.keys() - {"fact"})
    described = {ticked(fact)[0]: ticked(columns) for fact, columns, _ in document["Facts"].table()}

    assert {fact: set(columns) for fact, columns in described.items() if fact != "record"} == stated
    for columns in described.values():
        assert columns == [name for name in COLUMNS if name in columns], "in the order of the schema"


def test_a_record_sets_the_documented_columns(document, ledger) -> None:
    described = {ticked(fact)[0]: set(ticked(columns)) for fact, columns, _ in document["Facts"].table()}
    rows = pyarrow.parquet.read_table(ledger / "shard=0003" / chunk_name(3)).to_pylist()[-2:]

    assert [{name for name, value in row.items() if value is not None} for row in rows] == [
        described["record"] | {"fact"}
    ] * 2


def test_a_fact_with_an_offset_is_identified_by_its_columns(document) -> None:
    """Counting compares no names (drain.backlog.aggregates), so an older version would mistake a new fact for one of these."""
    described = {ticked(fact)[0]: set(ticked(columns)) for fact, columns, _ in document["Facts"].table()}
    with_offset = {
        fact: columns & {"subscription_id", "end_offset"} for fact, columns in described.items() if "offset" in columns
    }

    assert with_offset == {
        "record": set(),
        "acknowledged": {"subscription_id", "end_offset"},
        "position": {"subscription_id"},
    }


def test_no_entry_without_a_sample_states_facts(document) -> None:
    """Otherwise the tests above would not check a new fact."""
    sampled = {type(entry) for entry, _ in _sample_entries()}
    assert {kind for kind in ENTRIES if kind in sampled} == sampled
    for kind in set(ENTRIES) - sampled:
        assert facts_of(Mock(spec=kind), None) == [], f"{kind.__name__} states facts: add a sample here"


def test_every_entry_is_described_with_its_fields(document) -> None:
    described = {ticked(entry)[0]: ticked(fields) for entry, fields, _ in document["Entries"].table()}
    expected = {
        kind.__struct_config__.tag: [
            field.name + ("" if field.required else "?") for field in msgspec.inspect.type_info(kind).fields
        ]
        for kind in ENTRIES
    }

    assert described == expected
    assert all(meaning for _, _, meaning in document["Entries"].table())


def test_arrays_inside_entries_are_described_in_their_order(document) -> None:
    text = " ".join(document["Entries"].lines)

    assert f"`[{', '.join(e.Placement.__struct_fields__)}]`" in text
    assert f"`[{', '.join(e.AcknowledgedRange.__struct_fields__)}]`" in text
    imported = [
        field.name + ("" if field.required else "?") for field in msgspec.inspect.type_info(e.ImportedSegment).fields
    ]
    assert ", ".join(f"`{name}`" for name in imported[:-1]) + f" and `{imported[-1]}`" in text


@pytest.mark.parametrize("compacted", [0, 5, 8])
def test_the_examples_of_a_dataset_return_each_stored_record_once(
    document, compacted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run unchanged, on a ledger that was compacted and trimmed."""
    known = trimmed_ledger(tmp_path, compacted=compacted)
    known.serve(monkeypatch)
    names: dict[str, typing.Any] = {}
    for block in document["Python: Arrow, pandas, DuckDB and Polars"].fenced("python"):
        exec(block, names)

    columns = [names["table"].column(name).to_pylist() for name in ("segment", "offset", "value")]
    assert known.stored == sorted(zip(*columns, strict=True))
    assert len(known.stored) == sum(names["per_segment"].column("offset_count").to_pylist()) == len(names["frame"])
    values = [value for segment, _, value in known.stored if segment == 0]
    assert [(0, len(values), sum(map(len, values)))] == names["sums"]
    assert len(values) == sum(names["keys"]["len"])


def test_the_examples_for_chunks_read_the_ledger(document, ledger) -> None:
    """The examples run unchanged, on another folder."""
    names: dict[str, typing.Any] = {}
    for heading in ("Checksums", "Entries and headers of the chunks that are left"):
        for block in document[heading].fenced("python"):
            exec(block.replace("/srv/headgate/chunks", str(ledger)), names)

    assert [header["number"] for header in names["headers"]] == [1, 2, 3]
    assert [entry["type"] for entry in names["entries"]] == ["term_started", "topic_created", "records_stored"]
    for path in ledger.glob("shard=*/*.parquet"):
        data = path.read_bytes()
        assert names["is_intact"](data)
        assert not names["is_intact"](data[:50] + b"?" + data[51:])
    assert not names["is_intact"](b"PAR1")
