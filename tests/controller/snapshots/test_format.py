"""A snapshot and the chunks after it restore the state of the whole ledger, field by field."""

import dataclasses
import random
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from controller.context.step_driver import MAX_COST_PER_TURN
from controller.snapshots import format as snapshots
from controller.snapshots.format import SnapshotError, decode_steps, encode_snapshot, stored
from headgate.ledger.checksum import SEAL_BYTES, seal
from headgate.model import entries as e
from shard.state.producers import FinishedBatch, FinishedBatches, ProducerState
from shard.state.shard_state import ShardState
from shard.state.topic import SegmentTail
from tests.support.samples.histories import History
from tests.support.whole_state import decode_snapshot, everything


def random_history(seed: int, chunks: int = 60) -> History:
    history = History(seed)
    history.grow(chunks)
    return history


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_and_the_chunks_after_it_restore_the_state_of_the_whole_ledger(seed: int) -> None:
    history = random_history(seed)
    rng = random.Random(seed)
    state = ShardState(0)
    while state.chunk < len(history.chunks):
        number = state.chunk + 1
        state.apply_all(history.chunks[number - 1], chunk=number, at_ms=history.at_ms(number))
        if rng.random() < 0.15:
            before = everything(state)
            state = decode_snapshot(encode_snapshot(state, written_at_ms=0), shard=0, chunk=number)
            assert before == everything(state)

    assert everything(history.state) == everything(state)


def test_the_histories_include_every_entry_and_every_field() -> None:
    """Otherwise a snapshot could omit a field unnoticed. For a new field, extend tests/support/samples/histories.py."""
    kinds: set[type] = set()
    values: dict[str, set[str]] = defaultdict(set)
    for seed in range(12):
        history = random_history(seed)
        kinds.update(type(entry) for entries in history.chunks for entry in entries)
        _collect_values(history.state, values)
    tail = SegmentTail()
    for chunk in range(1, 400):
        tail.add_index_entry(chunk * 2, chunk)
    _collect_values(tail, values)

    assert set(typing.get_args(e.AnyEntry)) == kinds
    # The format of the ledger allows one value, and the histories have one length and no outage.
    fixed = {"Topic.buckets", "LedgerTime.at_ms", "LedgerTime.skips"}
    assert fixed == {name for name in snapshots.FIELDS if not name.startswith("_Core") and len(values[name]) < 2}


def _collect_values(value: Any, values: dict[str, set[str]]) -> None:
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, ShardState):
        value = [
            *([stored(each) for each in value.topics.values()], dict(value.producers), value.producers.deleted),
            *(value.terms, value.deleted_members, value.tombstones),
        ]
    if isinstance(value, list | tuple | FinishedBatches):
        for item in value:
            _collect_values(item, values)
        return
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    names += value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()
    for name in names:
        values[f"{type(value).__name__}.{name}"].add(repr(getattr(value, name)))
        _collect_values(getattr(value, name), values)


def opened(data: bytes) -> dict[str, Any]:
    """Return the content of a snapshot as plain values."""
    values: dict[str, Any] = msgspec.msgpack.decode(data[SEAL_BYTES:])
    return values


def _encoded() -> tuple[bytes, int]:
    state = random_history(1, 40).state
    return encode_snapshot(state, written_at_ms=7), state.chunk


def test_the_header_states_shard_chunk_time_and_fields() -> None:
    data, chunk = _encoded()
    header = opened(data)["header"]

    assert (0, chunk, 7) == (header["shard"], header["chunk"], header["written_at_ms"])
    assert "ProducerState.finished" in header["fields"]
    assert "Segment.parents" in header["fields"]
    assert "Layout._routes" not in header["fields"]


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a missing topic": (lambda file: file["topics"].pop(0), "topics and producers, and states"),
    "a missing producer": (lambda file: file["producers"].pop(0), "topics and producers, and states"),
    "a newer format": (
        lambda file: file["header"].update(format=9),
        "newer version: it has format 9; run that version",
    ),
    "a newer field": (
        lambda file: file["header"]["fields"].append("Topic.colour"),
        "newer version: it has Topic.colour; run that version",
    ),
    "an older version": (lambda file: file["header"]["fields"].remove("Topic.policy"), ""),
}


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_what_another_version_wrote_is_read_and_what_is_newer_or_incomplete_is_rejected(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    data, chunk = _encoded()
    file = opened(data)
    change(file)
    with pytest.raises(SnapshotError, match=reason) if reason else nullcontext():
        assert chunk == decode_snapshot(seal(msgspec.msgpack.encode(file)), shard=0, chunk=chunk).chunk


def test_truncated_and_foreign_objects_are_rejected() -> None:
    data, chunk = _encoded()
    no_checksum = data[SEAL_BYTES:]
    for wrong in (b"", b"PAR1", data[: len(data) // 2], no_checksum, seal(msgspec.msgpack.encode({"header": 3}))):
        with pytest.raises(SnapshotError, match="is not a snapshot, or is damaged"):
            decode_snapshot(wrong, shard=0, chunk=chunk)


def test_below_the_level_of_a_field_the_version_before_reads_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ShardState(0)
    monkeypatch.setitem(snapshots.FIELDS_SINCE, "_Core.trimmed_below", 2)
    first, second = (encode_snapshot(state, written_at_ms=0, level=level) for level in (1, 2))
    monkeypatch.setattr(snapshots, "FIELDS", snapshots.FIELDS - {"_Core.trimmed_below"})

    assert everything(state) == everything(decode_snapshot(first, shard=0, chunk=0))
    with pytest.raises(SnapshotError, match=r"newer version: it has _Core.trimmed_below"):
        decode_snapshot(second, shard=0, chunk=0)


def test_a_snapshot_with_another_name_is_rejected() -> None:
    data, chunk = _encoded()
    with pytest.raises(SnapshotError, match=f"states that it is of chunk {chunk}, shard 0"):
        decode_snapshot(data, shard=1, chunk=chunk)
    with pytest.raises(SnapshotError, match="states that it is of chunk"):
        decode_snapshot(data, shard=0, chunk=chunk + 1)


def test_a_step_that_decodes_many_batches_costs_more_than_a_turn_has() -> None:
    """So it is the only one of its turn; a step with identities alone fits into a turn."""
    costs = {}
    for batches in (0, 2):
        state, draws = ShardState(0), random.Random(1)
        state.begin_chunk(1, 0)
        for _ in range(snapshots.PRODUCERS_PER_BLOCK):
            producer = ProducerState(draws.getrandbits(63), 0, None, f"token-{draws.random()}")
            for sequence in range(batches):
                placements = [e.Placement(segment, 0, draws.getrandbits(40), 7, 5) for segment in range(4)]
                producer.finished.append(FinishedBatch(sequence, 2, 1, draws.randbytes(16), placements))
            state.producers.restore(producer)
        costs[batches] = max(decode_steps(encode_snapshot(state, written_at_ms=0), shard=0, chunk=1))

    assert MAX_COST_PER_TURN / 20 < costs[0] < MAX_COST_PER_TURN < costs[2]
