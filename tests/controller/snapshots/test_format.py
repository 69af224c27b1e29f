"""A snapshot and the tail come to what the whole ledger comes to, field by field."""

from __future__ import annotations

import dataclasses
import random
import typing
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from controller.snapshots import format as snapshots
from controller.snapshots.format import SnapshotError, decode_header, decode_snapshot, decode_steps, encode_snapshot
from controller.state.dedup_window import FinishedBatches
from controller.state.shard_state import ProducerState, SegmentTail, ShardState
from headgate.model import entries as e
from tests.support.histories import History
from tests.support.whole_state import everything


def folded(history: History, state: ShardState) -> ShardState:
    """Fold the rest of ``history`` into ``state``."""
    for number, entries in enumerate(history.chunks[state.chunk :], start=state.chunk + 1):
        state.apply_all(entries, chunk=number, at_ms=history.at_ms(number))
    return state


def grown(seed: int, chunks: int = 60) -> History:
    history = History(seed)
    history.grow(chunks)
    return history


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_and_the_tail_fold_to_what_the_whole_ledger_folds_to(seed: int) -> None:
    history = grown(seed)
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


def test_what_a_topic_and_its_subscriptions_are_reached_by_is_one_object() -> None:
    """A fold that changed one of two copies would forget half."""
    state = grown(3).state
    restored = decode_snapshot(encode_snapshot(state, written_at_ms=0), shard=0, chunk=state.chunk)

    assert restored.topics_by_id
    assert restored.subscriptions
    for topic in restored.topics.values():
        assert restored.topics_by_id[topic.topic_id] is topic
        for subscription in topic.subscriptions.values():
            assert restored.subscriptions[subscription.subscription_id] is subscription


def test_the_histories_reach_every_entry_and_every_field() -> None:
    """Or a field that the snapshot forgets could hide. If this fails for yours: teach tests/support/histories.py."""
    kinds: set[type] = set()
    values: dict[str, set[str]] = defaultdict(set)
    for seed in range(12):
        history = grown(seed)
        kinds.update(type(entry) for entries in history.chunks for entry in entries)
        _note(history.state, values)
    tail = SegmentTail()
    for chunk in range(1, 400):
        tail.add_index_entry(chunk * 2, chunk)
    _note(tail, values)

    assert set(typing.get_args(e.AnyEntry)) == kinds
    fixed = {"Topic.buckets"}  # The format of the ledger allows one value.
    assert fixed == {name for name in snapshots.FIELDS if not name.startswith("_Core") and len(values[name]) < 2}


def _note(value: Any, values: dict[str, set[str]]) -> None:
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, ShardState):
        value = [value.topics, value.producers]
    if isinstance(value, list | tuple | FinishedBatches):
        for item in value:
            _note(item, values)
        return
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    names += value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()
    for name in names:
        values[f"{type(value).__name__}.{name}"].add(repr(getattr(value, name)))
        _note(getattr(value, name), values)


def _encoded() -> tuple[bytes, int]:
    state = grown(1, 40).state
    return encode_snapshot(state, written_at_ms=7), state.chunk


def test_the_header_says_what_it_is_and_when_it_was_written() -> None:
    data, chunk = _encoded()
    header = decode_header(data, shard=0, chunk=chunk)

    assert (0, chunk, 7) == (header.shard, header.chunk, header.written_at_ms)
    assert "ProducerState.finished" in header.fields
    assert "Segment.parents" in header.fields
    assert "Layout._routes" not in header.fields


@pytest.mark.parametrize("part", ["core", "topics", "producers", "names"])
def test_a_damaged_part_is_noticed(part: str) -> None:
    data, chunk = _encoded()
    file = msgspec.msgpack.decode(data)
    blob = file[part] if part == "core" else file[part][0]
    damaged = bytearray(blob)
    damaged[len(damaged) // 2] ^= 0x10
    file[part] = bytes(damaged) if part == "core" else [bytes(damaged), *file[part][1:]]

    with pytest.raises(SnapshotError, match=f"snapshot {chunk} of shard 0 is damaged"):
        decode_snapshot(msgspec.msgpack.encode(file), shard=0, chunk=chunk)


@pytest.mark.parametrize("part", ["topics", "producers", "names"])
def test_a_part_that_is_missing_is_noticed(part: str) -> None:
    data, chunk = _encoded()
    file = msgspec.msgpack.decode(data)
    del file[part][0]

    with pytest.raises(SnapshotError, match="says that it has other"):
        decode_snapshot(msgspec.msgpack.encode(file), shard=0, chunk=chunk)


def test_half_an_object_and_a_foreign_one_are_refused() -> None:
    data, chunk = _encoded()
    for wrong in (b"", b"PAR1", data[: len(data) // 2], msgspec.msgpack.encode({"header": 3})):
        with pytest.raises(SnapshotError, match="is not a snapshot, or damaged"):
            decode_snapshot(wrong, shard=0, chunk=chunk)


def test_one_that_stands_under_another_name_is_refused() -> None:
    data, chunk = _encoded()
    with pytest.raises(SnapshotError, match=f"says that it is of chunk {chunk}, shard 0"):
        decode_snapshot(data, shard=1, chunk=chunk)
    with pytest.raises(SnapshotError, match="says that it is of chunk"):
        decode_header(data, shard=0, chunk=chunk + 1)


@pytest.mark.parametrize("changed", ["format", "fields"])
def test_what_a_newer_version_wrote_is_refused_and_not_half_understood(changed: str) -> None:
    data, chunk = _encoded()
    file = msgspec.msgpack.decode(data)
    file["header"][changed] = 3 if changed == "format" else [*file["header"]["fields"], "Topic.colour"]

    with pytest.raises(SnapshotError, match=r"newer version: it has (format 3|Topic.colour); run that version"):
        decode_snapshot(msgspec.msgpack.encode(file), shard=0, chunk=chunk)


def test_a_field_that_an_older_version_did_not_have_takes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    data, chunk = _encoded()
    monkeypatch.setattr(snapshots, "FIELDS", snapshots.FIELDS | {"Topic.colour"})

    assert chunk == decode_snapshot(data, shard=0, chunk=chunk).chunk


def test_many_producers_are_decoded_in_parts() -> None:
    """So that a daemon that leads other shards meanwhile is not held up."""
    state = ShardState(0)
    state.begin_chunk(1, 0)
    for number in range(snapshots.PRODUCERS_PER_BLOCK * 3):
        state.producers[number] = ProducerState(number, 0, None, "token")
    steps = 0
    for _ in decode_steps(encode_snapshot(state, written_at_ms=0), shard=0, chunk=1):
        steps += 1

    assert steps == 1 + 3
