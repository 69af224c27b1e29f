"""Sees every object that is written and every record that is delivered, and says at once when a promise is broken.

The witness reads the bucket itself. It folds the ledger with the real fold, and checks beside it what that fold takes
for granted: numbers, epochs, offsets, a key's order, and that no child is granted before its ancestors are drained.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from controller.state import ShardState
from headgate import chunk
from headgate import entries as e

_CHUNK = re.compile(r"ledger/shard=(\d+)/(\d+)\.parquet")


class BrokenPromiseError(AssertionError):
    """What headgate promises did not hold."""


@dataclass
class Stored:
    """One record as the ledger holds it."""

    segment: int
    offset: int
    key: bytes
    value: bytes


@dataclass
class Witness:
    """One run's evidence."""

    states: dict[int, ShardState] = field(default_factory=dict)
    stored: dict[str, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    """Per topic, in the order of the ledger."""
    epochs: dict[int, int] = field(default_factory=dict)
    counters: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """(topic, key) → the highest counter stored."""
    places: dict[tuple[str, int, int], tuple[bytes, bytes]] = field(default_factory=dict)
    first_delivered: dict[tuple[str, str, bytes], int] = field(default_factory=dict)
    """(topic, subscription, key) → the highest counter delivered."""
    delivered: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    story: list[str] = field(default_factory=list)
    chunks: int = 0

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def written(self, path: str, data: bytes, *, before: bytes | None) -> None:
        """Look at an object that has just come into being."""
        matched = _CHUNK.fullmatch(path)
        if matched is None:
            return
        shard, number = int(matched[1]), int(matched[2])
        if before is not None:
            raise BrokenPromiseError(f"chunk {number} of shard {shard} was written twice")
        self.chunks += 1
        state = self.states.setdefault(shard, ShardState(shard))
        if number != state.chunk + 1:
            raise BrokenPromiseError(f"shard {shard}: chunk {number} follows chunk {state.chunk}")
        found = chunk.decode(data, shard=shard, number=number)
        self._epoch(shard, found)
        self._records(state, data, number)
        state.begin_chunk(number, found.header.at_ms)
        for entry in found.entries:
            state.apply(entry)
            if isinstance(entry, e.SegmentGranted):
                self._granted(state, entry)
        self.story.append(f"chunk {shard}/{number} epoch {found.header.leader_epoch}: {_kinds(found)}")

    def _epoch(self, shard: int, found: chunk.Chunk) -> None:
        began = [entry.leader_epoch for entry in found.entries if isinstance(entry, e.ReignBegan)]
        before = self.epochs.get(shard, 0)
        expected = before + 1 if began else before
        if found.header.leader_epoch != expected or (began and began != [expected]):
            raise BrokenPromiseError(
                f"shard {shard}: chunk {found.header.number} of epoch {found.header.leader_epoch} after epoch {before}"
            )
        self.epochs[shard] = expected

    def _records(self, state: ShardState, data: bytes, number: int) -> None:
        table = chunk.decode_records(data, shard=state.shard, number=number).to_pylist()
        next_offsets: dict[tuple[int, int], int] = {}
        for row in table:
            topic = state.topics_by_id[row["topic_id"]]
            place = (row["topic_id"], row["segment"])
            tail = topic.tails.get(row["segment"])
            expected = next_offsets.get(place, tail.next_offset if tail else 0)
            if row["offset"] != expected:
                raise BrokenPromiseError(
                    f"{topic.name}: offset {row['offset']} in segment {row['segment']}, not {expected}"
                )
            next_offsets[place] = expected + 1
            counter = int(row["value"])
            highest = self.counters.get((topic.name, row["key"]), -1)
            if counter <= highest:
                raise BrokenPromiseError(f"{topic.name}: {row['key']!r} #{counter} stored after #{highest}")
            self.counters[topic.name, row["key"]] = counter
            self.stored[topic.name].append(Stored(row["segment"], row["offset"], row["key"], row["value"]))
            self.places[topic.name, row["segment"], row["offset"]] = (row["key"], row["value"])

    def _granted(self, state: ShardState, entry: e.SegmentGranted) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        if subscription.type != "STREAM":
            return
        layout = state.topics_by_id[entry.topic_id].layout
        for ancestor in layout.ancestors(entry.segment):
            end = layout.segments[ancestor].end_offset
            if end is None or subscription.position(ancestor) < end:
                raise BrokenPromiseError(
                    f"{subscription.name}: segment {entry.segment} granted before its ancestor {ancestor} was drained"
                )

    # --- the consumers ------------------------------------------------------------------------------------------------

    def received(
        self, topic: str, subscription: str, kind: str, segment: int, offset: int, key: bytes, value: bytes
    ) -> None:
        """Look at a record that has just been delivered."""
        if self.places.get((topic, segment, offset)) != (key, value):
            raise BrokenPromiseError(
                f"{subscription}: {key!r} {value!r} was delivered from {segment}:{offset}, where it is not"
            )
        seen = self.delivered[topic, subscription]
        if (segment, offset) in seen:
            return
        seen.add((segment, offset))
        if kind != "STREAM":
            return
        counter = int(value)
        highest = self.first_delivered.get((topic, subscription, key), -1)
        if counter <= highest:
            raise BrokenPromiseError(f"{subscription}: {key!r} #{counter} first delivered after #{highest}")
        self.first_delivered[topic, subscription, key] = counter

    # --- the end ------------------------------------------------------------------------------------------------------

    def nothing_lost(self, topic: str, committed: dict[bytes, list[int]]) -> None:
        """Every record that a producer was told is committed stands in the ledger."""
        held = defaultdict(set)
        for record in self.stored[topic]:
            held[record.key].add(int(record.value))
        for key, counters in committed.items():
            if missing := set(counters) - held[key]:
                raise BrokenPromiseError(f"{topic}: {key!r} {sorted(missing)[:5]} committed and lost")

    def everything_delivered(self, topic: str, subscription: str) -> None:
        """Every record of the ledger reached the subscription."""
        missing = {(record.segment, record.offset) for record in self.stored[topic]} - self.delivered[
            topic, subscription
        ]
        if missing:
            raise BrokenPromiseError(f"{subscription}: {len(missing)} records never delivered, e.g. {min(missing)}")


class WitnessedObjects(dict[str, bytes]):
    """A bucket whose every write is seen at the moment it happens."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def __setitem__(self, path: str, data: bytes) -> None:
        before = self.get(path)
        super().__setitem__(path, data)
        self._witness.written(path, data, before=before)


def _kinds(found: chunk.Chunk) -> str:
    kinds = [type(entry).__name__ for entry in found.entries]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "proof"
