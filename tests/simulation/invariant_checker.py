"""Sees every object that is written and every record that is delivered, and says at once when a promise is broken.

The witness reads the bucket itself. It folds the ledger with the real fold, and checks beside it what that fold takes
for granted: numbers, epochs, offsets, a key's order, and that no child is granted before its ancestors are drained.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.snapshots.format import decode_snapshot
from controller.state.shard_state import ShardState
from headgate.ledger import chunk
from headgate.model import entries as e
from headgate.model.bucket_ranges import Share, overlap, place_of
from headgate.model.hashing import KEY_BUCKETS, key_bucket
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.clients import KEY_PREFIX
from tests.support.whole_state import everything

_SNAPSHOT = re.compile(r"snapshots/shard=(\d+)/(\d+)\.snapshot")
_CHUNK = re.compile(r"ledger/shard=(\d+)/(\d+)\.parquet")


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
    history: dict[int, list[tuple[tuple[e.AnyEntry, ...], int]]] = field(default_factory=dict)
    """Entries and time of each chunk, from the first on."""
    epochs: dict[int, int] = field(default_factory=dict)
    counters: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """(topic, key) → the highest counter stored."""
    places: dict[tuple[str, int, int], tuple[bytes, bytes]] = field(default_factory=dict)
    first_delivered: dict[tuple[str, str, bytes], int] = field(default_factory=dict)
    """(topic, subscription, key) → the highest counter delivered since the last seek that moved the key."""
    delivered: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    """(topic, subscription) → (segment, offset) delivered since the last seek that moved the segment."""
    floors: dict[tuple[str, str], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """(topic, subscription) → segment → where the last seek put it."""
    sought_at: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(topic, subscription) → the first generation after its last seek."""
    reading: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """(consumer's program, segment, key bucket) → the generation of what it was given last."""
    members: dict[tuple[str, str, str, int, str], int] = field(default_factory=dict)
    """(topic, subscription, consumer, incarnation, client) → id of the subscription that this program was in."""
    seeks: int = 0
    deletions: int = 0
    repeats: set[tuple[str, int, int]] = field(default_factory=set)
    """(topic, segment, offset) of records of devices that were stored before."""
    weighed: int = 0
    """How often a weight changed."""
    story: list[str] = field(default_factory=list)
    chunks: int = 0
    automatic_changes: int = 0
    pruned: int = 0
    shares: int = 0
    """How often a part of a segment was granted."""

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def written(self, path: str, data: bytes, *, before: bytes | None) -> None:
        """Look at an object that has just come into being."""
        if snapshot := _SNAPSHOT.fullmatch(path):
            self._snapshot(data, int(snapshot[1]), int(snapshot[2]))
        matched = _CHUNK.fullmatch(path)
        if matched is None:
            return
        shard, number = int(matched[1]), int(matched[2])
        if before is not None:
            raise BrokenPromiseError(f"chunk {number} of shard {shard} was written twice")
        self.chunks += 1
        state = self.states.setdefault(shard, ShardState(shard))
        if number <= state.chunk and not [
            entry
            for entry in chunk.decode(data, shard=shard, number=number).entries
            if not isinstance(entry, e.ReignBegan)
        ]:
            # A contender that stood still: the number was free again, and it notices before it leads.
            self.story.append(f"chunk {shard}/{number}: a reign chunk behind the trim")
            return
        if number != state.chunk + 1:
            raise BrokenPromiseError(f"shard {shard}: chunk {number} follows chunk {state.chunk}")
        found = chunk.decode(data, shard=shard, number=number)
        self._epoch(shard, found)
        self._records(state, data, number)
        self.history.setdefault(shard, []).append((found.entries, found.header.at_ms))
        state.begin_chunk(number, found.header.at_ms)
        for entry in found.entries:
            if isinstance(entry, e.SegmentsPruned):
                self._pruned(state, entry)
            if isinstance(entry, e.SegmentSplit | e.SegmentsMerged):
                self.automatic_changes += bool(entry.reason)
            if isinstance(entry, e.SegmentsWeighed):
                self._weighed(state, entry)
            if isinstance(entry, e.DataDeleted):
                self._deleted(state, entry)
            state.apply(entry)
            if isinstance(entry, e.SegmentGranted):
                self._granted(state, entry)
            elif isinstance(entry, e.Sought):
                self._sought(state, entry)
            elif isinstance(entry, e.ConsumerRegistered):
                self._registered(state, entry)
            elif isinstance(entry, e.SubscriptionDeleted):
                self.deletions += 1
        self._nobodys(found.entries)
        self.story.append(f"chunk {shard}/{number} epoch {found.header.leader_epoch}: {_kinds(found)}")

    def _snapshot(self, data: bytes, shard: int, number: int) -> None:
        """Compare a snapshot with what the chunks themselves come to."""
        folded = ShardState(shard)
        for at, (entries, at_ms) in enumerate(self.history.get(shard, [])[:number], start=1):
            folded.apply_all(entries, chunk=at, at_ms=at_ms)
        if folded.chunk != number:
            raise BrokenPromiseError(f"snapshot {number} of shard {shard} is ahead of chunk {folded.chunk}")
        expected, found = everything(folded), everything(decode_snapshot(data, shard=shard, chunk=number))
        if wrong := [name for name in expected if expected[name] != found[name]]:
            raise BrokenPromiseError(f"snapshot {number} of shard {shard} has other {', '.join(wrong)} than its ledger")
        self.story.append(f"snapshot {shard}/{number}")

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
            if row["key"].startswith(KEY_PREFIX):
                # What devices publish is stored at least once: a record may come again, but none may be passed over.
                if counter > highest + 1:
                    raise BrokenPromiseError(f"{topic.name}: {row['key']!r} #{counter} stored after #{highest}")
                if counter <= highest:
                    self.repeats.add((topic.name, row["segment"], row["offset"]))
            elif counter <= highest:
                raise BrokenPromiseError(f"{topic.name}: {row['key']!r} #{counter} stored after #{highest}")
            self.counters[topic.name, row["key"]] = max(counter, highest)
            self.stored[topic.name].append(Stored(row["segment"], row["offset"], row["key"], row["value"]))
            self.places[topic.name, row["segment"], row["offset"]] = (row["key"], row["value"])

    def _granted(self, state: ShardState, entry: e.SegmentGranted) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        granted = place_of(entry.segment, entry.first_bucket, entry.end_bucket)
        for place, holding in subscription.holdings.items():
            if overlap(place, granted) and holding.generation != entry.generation:
                raise BrokenPromiseError(
                    f"{subscription.name}: {granted} granted to {entry.consumer} while {holding.consumer} holds {place}"
                )
        if isinstance(granted, Share):
            self.shares += 1
        if subscription.type != "STREAM":
            return
        layout = state.topics_by_id[entry.topic_id].layout
        for ancestor in layout.ancestors(entry.segment):
            end = layout.segments[ancestor].end_offset
            if end is None or subscription.position(ancestor) < end:
                raise BrokenPromiseError(
                    f"{subscription.name}: segment {entry.segment} granted before its ancestor {ancestor} was drained"
                )

    def _sought(self, state: ShardState, entry: e.Sought) -> None:
        """From here on, what was moved is delivered as if for the first time; what is under way of before counts not."""
        self.seeks += 1
        subscription = state.subscriptions[entry.subscription_id]
        topic = subscription.topic
        place = topic, subscription.name
        self.sought_at[place] = subscription.next_generation
        self.floors[place].update(entry.positions)
        self.delivered[place] = {(s, offset) for s, offset in self.delivered[place] if s not in entry.positions}
        for record in self.stored[topic]:
            if record.segment in entry.positions:
                self.first_delivered.pop((*place, record.key), None)

    def _registered(self, state: ShardState, entry: e.ConsumerRegistered) -> None:
        known = state.subscriptions[entry.subscription_id]
        program = (known.topic, known.name, entry.consumer, entry.incarnation, entry.client_id)
        if self.members.setdefault(program, entry.subscription_id) != entry.subscription_id:
            raise BrokenPromiseError(f"{known.name}: {entry.client_id} came back after its subscription was deleted")

    def _nobodys(self, entries: Iterable[e.AnyEntry]) -> None:
        """A subscription begins because somebody registers; a program that is refused must not leave one behind."""
        begun = {
            entry.subscription_id: entry.subscription for entry in entries if isinstance(entry, e.SubscriptionCreated)
        }
        members = {entry.subscription_id for entry in entries if isinstance(entry, e.ConsumerRegistered)}
        if ghosts := begun.keys() - members:
            raise BrokenPromiseError(f"{[begun[ghost] for ghost in ghosts]} came back and nobody is in it")

    def _weighed(self, state: ShardState, entry: e.SegmentsWeighed) -> None:
        """A weight changes only when the load has doubled or halved; a half is rounded to whole units."""
        known = state.subscriptions[entry.subscription_id]
        for segment, weight in entry.weights.items():
            before = known.weights.get(segment)
            if before is not None and weight < 2 * before and 2 * weight > before + 1:
                raise BrokenPromiseError(f"{known.name}: segment {segment} weighed {before}, and weighs {weight} now")
        self.weighed += 1

    def _pruned(self, state: ShardState, entry: e.SegmentsPruned) -> None:
        topic = state.topics_by_id[entry.topic_id]
        going = set(entry.segments)
        for segment in entry.segments:
            end = topic.layout.segments[segment].end_offset
            if end is None:
                raise BrokenPromiseError(f"{topic.name}: segment {segment} was pruned while it takes records")
            if left := topic.layout.ancestors(segment) - going:
                raise BrokenPromiseError(f"{topic.name}: segment {segment} was pruned before its ancestors {left}")
            for subscription in topic.subscriptions.values():
                if subscription.type != "CHECKPOINT" and subscription.position(segment) < end:
                    raise BrokenPromiseError(
                        f"{subscription.name}: segment {segment} was pruned at {subscription.position(segment)} of {end}"
                    )
                if segment in subscription.holdings:
                    raise BrokenPromiseError(f"{subscription.name}: segment {segment} was pruned from under its reader")
        self.pruned += len(going)

    def _deleted(self, state: ShardState, entry: e.DataDeleted) -> None:
        topic = state.topics_by_id.get(entry.topic_id)
        if topic is not None and (left := set(entry.segments) & set(topic.layout.segments)):
            raise BrokenPromiseError(f"{topic.name}: data of segments {left} was deleted, and they are there")

    # --- the consumers ------------------------------------------------------------------------------------------------

    def received(
        self,
        topic: str,
        subscription: str,
        kind: str,
        segment: int,
        offset: int,
        key: bytes,
        value: bytes,
        *,
        generation: int,
        program: str,
    ) -> None:
        """Look at a record that has just been delivered to one life of a consumer's program."""
        place = program, segment, key_bucket(key, KEY_BUCKETS)
        before = self.reading.get(place, 0)
        if generation < before:
            raise BrokenPromiseError(
                f"{program}: {segment}:{offset} of generation {generation} was delivered after generation {before}"
            )
        self.reading[place] = generation
        if self.places.get((topic, segment, offset)) != (key, value):
            raise BrokenPromiseError(
                f"{subscription}: {key!r} {value!r} was delivered from {segment}:{offset}, where it is not"
            )
        if generation < self.sought_at[topic, subscription]:
            return
        seen = self.delivered[topic, subscription]
        if (segment, offset) in seen:
            return
        seen.add((segment, offset))
        if kind != "STREAM" or (topic, segment, offset) in self.repeats:
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

    def undelivered(self, topic: str, subscription: str) -> set[tuple[int, int]]:
        """Return (segment, offset) of what the subscription has not been given since it was moved there."""
        floors = self.floors[topic, subscription]
        owed = {(r.segment, r.offset) for r in self.stored[topic] if r.offset >= floors.get(r.segment, 0)}
        return owed - self.delivered[topic, subscription]

    def everything_delivered(self, topic: str, subscription: str) -> None:
        """Every record of the ledger reached the subscription, apart from those that it was told to pass over."""
        missing = self.undelivered(topic, subscription)
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
