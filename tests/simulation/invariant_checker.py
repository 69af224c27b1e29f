"""Checks every object that is written and every record that is delivered, and raises at the first violation.

The checker reads the bucket itself. It applies the ledger with the real fold, and separately checks
what that fold assumes: chunk numbers, epochs, offsets, the order of each key, and that no child is
granted before its ancestors are drained.
"""

import asyncio
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.leadership.policy.feature_levels import FIRST, MURMUR_DIGESTS, SHARDS_GROW, supported
from controller.snapshots.format import FIELDS_SINCE, decode_file
from headgate import ConsumedRecord
from headgate.ledger import chunk
from headgate.model import entries as e
from headgate.model.headers import Headers
from headgate.model.layout import KEY_BUCKETS, BucketRange, key_bucket, overlaps, slice_of
from headgate.protocol.codec import MURMUR_DIGEST_BYTES
from shard.state.shard_state import ShardState
from shard.subscriptions.gate import is_gated
from tests.simulation.backlog_checker import BacklogChecker
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.client_history import ClientHistory
from tests.simulation.clients import KEY_PREFIX
from tests.simulation.import_program import IMPORT_KEY
from tests.simulation.leadership_checker import LeadershipChecker
from tests.simulation.ledger_rules import LedgerRules
from tests.simulation.parking_program import CELLAR
from tests.simulation.queue_program import GRAVEYARD
from tests.simulation.quota_rules import QuotaRules
from tests.simulation.rare_clients import headers_of
from tests.simulation.rebirth_program import ASHES, PHOENIX
from tests.simulation.story import Story
from tests.support.samples.chunks import record_rows
from tests.support.whole_state import decode_snapshot, everything
from tests.support.worlds.one_shard import now_ms

_SNAPSHOT = re.compile(r"snapshots/shard=(\d+)/(\d+)\.snapshot")
_CHUNK = re.compile(r"chunks/shard=(\d+)/(\d+)\.parquet")


@dataclass
class Stored:
    segment: int
    offset: int
    key: bytes
    value: bytes
    topic_id: int
    headers: Headers
    at_ms: int
    """Of its chunk."""


@dataclass
class InvariantChecker:
    """What one run has shown so far."""

    level: Callable[[], int] = lambda: supported()[1]
    """Returns the feature level of the cluster."""
    states: dict[int, ShardState] = field(default_factory=dict)
    stored: dict[str, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    """By topic, in the order of the ledger."""
    history: dict[int, list[tuple[tuple[e.AnyEntry, ...], int]]] = field(default_factory=dict)
    """Entries and time of each chunk, starting with the first."""
    folded: dict[int, ShardState] = field(default_factory=dict)
    """A second fold, up to the newest snapshot of each shard."""
    counters: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """(topic, key) → the highest counter stored."""
    records_by_offset: dict[tuple[str, int, int], tuple[bytes, bytes, Headers]] = field(default_factory=dict)
    first_delivered: dict[tuple[str, str, bytes], int] = field(default_factory=dict)
    """(topic, subscription, key) → the highest counter delivered since the last seek that moved the key."""
    delivered: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    """(topic, subscription) → (segment, offset) delivered since the last seek that moved the segment."""
    seek_positions: dict[tuple[str, str], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """(topic, subscription) → segment → position of the last seek."""
    first_generation_after_seek: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(topic, subscription) → the first generation after its last seek."""
    delivered_generations: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """(consumer program, segment, key bucket) → generation of its last delivery."""
    ever_handled: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    """(topic, subscription) → (segment, offset) delivered at any time, and handled if that takes time."""
    positions: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(shard, subscription id, segment) → its position after the last acknowledgement."""
    generations: dict[tuple[int, int], int] = field(default_factory=dict)
    """(shard, subscription id) → the highest generation granted."""
    registrations: dict[tuple[str, str, str, int, str], int] = field(default_factory=dict)
    """(topic, subscription, consumer, incarnation, client) → id of the subscription of this program."""
    evicted_programs: set[tuple[str, str, str, int, str]] = field(default_factory=set)
    """(topic, subscription, consumer, incarnation, client) that a command has evicted."""
    abandoned_tokens: set[str] = field(default_factory=set)
    """Tokens of commands that were reported as not executed."""
    executed_tokens: set[str] = field(default_factory=set)
    seeks: int = 0
    duplicate_device_records: set[tuple[str, int, int]] = field(default_factory=set)
    """(topic, segment, offset) of device records that repeat an earlier one."""
    weight_changes: int = 0
    story: Story = field(default_factory=Story)
    chunks: int = 0
    fastest_clock: float = 1.0
    """The highest rate of a daemon's clock in this run."""
    virtual_seconds: float = 0.0
    """How long the run took in virtual time."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Verdict → how many batches a leader gave it."""
    changed_batches_refused: int = 0
    quotas_exceeded: Counter[str] = field(default_factory=Counter)
    """Quota → how often a leader refused a request for it."""
    situations: set[str] = field(default_factory=set)
    """Which of `tests.simulation.situations` were reached."""
    device_rejections: Counter[str] = field(default_factory=Counter)
    """Reason → how many messages of devices a leader did not store."""
    source_positions: dict[tuple[int, str, int], bytes] = field(default_factory=dict)
    """(shard, producer name, topic id) → the last source position stored under them."""
    topic_ids: set[tuple[str, int]] = field(default_factory=set)
    """(name, id) of all topics so far."""
    open_tokens: dict[str, int] = field(default_factory=dict)
    """Token of an open request → the producer that it opened, as long as the producer exists."""
    producers_removed: int = 0
    automatic_changes: int = 0
    pruned: int = 0
    partial_grants: int = 0
    backlogs: BacklogChecker = field(default_factory=BacklogChecker)
    leadership: LeadershipChecker = field(default_factory=LeadershipChecker)
    rules: LedgerRules = field(default_factory=LedgerRules)
    quotas: QuotaRules = field(default_factory=QuotaRules)
    clients: ClientHistory = field(default_factory=ClientHistory)
    calm: bool = False
    on_entry: Callable[[ShardState, e.AnyEntry], None] = lambda *_: None
    """Gets each entry, which the state contains already."""

    # The ledger

    def check_write(self, path: str, data: bytes, *, before: bytes | None) -> None:
        """Check an object that was just written."""
        matched = _CHUNK.fullmatch(path)
        if matched is None:
            if snapshot := _SNAPSHOT.fullmatch(path):
                self._check_snapshot(data, int(snapshot[1]), int(snapshot[2]))
            self.rules.manifest_written(path, data)
            return
        shard, number = int(matched[1]), int(matched[2])
        if before is not None:
            raise BrokenPromiseError(f"chunk {number} of shard {shard} was written twice")
        self.chunks += 1
        if (state := self.states.get(shard)) is None:
            state = self.states[shard] = ShardState(shard)
        found = chunk.decode(data, shard=shard, number=number)
        if number <= state.chunk and all(isinstance(entry, e.TermStarted) for entry in found.entries):
            # A contender that was frozen: the number was free again. It notices that before it leads.
            self.story.add(_now_seconds(), "a contender", f"chunk {shard}/{number}", "a term chunk behind the trim")
            return
        if number != state.chunk + 1:
            raise BrokenPromiseError(f"shard {shard}: chunk {number} follows chunk {state.chunk}")
        if found.header.at_ms > now_ms() + 1000 * _now_seconds() * (self.fastest_clock - 1):
            raise BrokenPromiseError(f"chunk {number} of shard {shard} is of the future: {found.header.at_ms} ms")
        if found.header.at_ms < state.at_ms:
            raise BrokenPromiseError(
                f"chunk {number} of shard {shard} is of {found.header.at_ms} ms, and the one before it of {state.at_ms} ms"
            )
        self.leadership.check_chunk(shard, found, _now_seconds())
        if found.header.records:
            created = {each.topic_id: each.topic for each in found.entries if isinstance(each, e.TopicCreated)}
            self._check_records(state, data, found.header, created)
        self.history.setdefault(shard, []).append((found.entries, found.header.at_ms))
        state.begin_chunk(number, found.header.at_ms)
        for entry in found.entries:
            self._check_before(state, entry)
            state.apply(entry)
            self.backlogs.entry_applied(state, entry)
            self._check_after(state, entry)
            self.on_entry(state, entry)
        self._check_created_subscriptions(found.entries)
        self._check_names(state)
        kinds = Counter(type(entry).__name__ for entry in found.entries)
        self.story.add_chunk(_now_seconds(), shard, found.header.leader_epoch, number, kinds)

    def _check_before(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Check an entry against the state before it."""
        match entry:
            case e.SegmentsPruned():
                self._check_pruning(state, entry)
            case e.SegmentSplit() | e.SegmentsMerged():
                self.automatic_changes += bool(entry.reason)
            case e.SegmentWeightsSet():
                self._check_weights(state, entry)
            case e.ProducerOpened():
                self._check_opening(entry)
            case e.SegmentGranted():
                self._check_holders(state, entry)
        if self.level() < _level_of(entry):
            raise BrokenPromiseError(f"the cluster has level {self.level()}, which does not allow {entry}")
        self._check_token(state, entry)
        self.rules.check_before(state, entry)

    def _check_after(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Check what an entry has made of the state."""
        match entry:
            case e.ProducersExpired():
                self._record_expiry(entry)
            case e.TopicCreated() | e.TopicImported():
                self._check_name(state, entry)
            case e.RecordsStored():
                self._record_position(state, entry)
            case e.SegmentGranted():
                self._check_grant(state, entry)
            case e.RecordsAcknowledged():
                self._check_acknowledgement(state, entry)
            case e.SubscriptionCreated():
                self._record_creation(state, entry)
            case e.SubscriptionSeek():
                self._record_seek(state, entry)
            case e.ConsumerRegistered():
                self._check_registration(state, entry)
        self.rules.check_after(state, entry)
        self.quotas.check_after(state, entry)

    def _check_name(self, state: ShardState, entry: e.TopicCreated | e.TopicImported) -> None:
        """Check that no other shard has a name that becomes a topic, and that the name gets a new id."""
        others = [each.shard for each in self.states.values() if each is not state and entry.topic in each.topics]
        if others:
            raise BrokenPromiseError(f"{entry.topic} is created on shard {state.shard}, and shards {others} have it")
        if (entry.topic, entry.topic_id) in self.topic_ids:
            raise BrokenPromiseError(f"{entry.topic} gets its id {entry.topic_id} again, on shard {state.shard}")
        self.topic_ids.add((entry.topic, entry.topic_id))

    def check_deletion(self, path: str) -> None:
        """Check an object that is deleted."""
        if matched := _CHUNK.fullmatch(path):
            shard, number = int(matched[1]), int(matched[2])
            self.rules.check_deletion(shard, number, self.history[shard][number - 1][0], now_ms())

    def _check_snapshot(self, data: bytes, shard: int, number: int) -> None:
        """Compare a snapshot with the fold over the chunks."""
        folded = self.folded.get(shard)
        if folded is None or folded.chunk > number:
            folded = self.folded[shard] = ShardState(shard)
        history = self.history.get(shard, [])
        for at, (entries, at_ms) in enumerate(history[folded.chunk : number], start=folded.chunk + 1):
            folded.apply_all(entries, chunk=at, at_ms=at_ms)
        if folded.chunk != number:
            raise BrokenPromiseError(f"snapshot {number} of shard {shard} is ahead of chunk {folded.chunk}")
        if later := [
            name
            for name in decode_file(data, shard=shard, chunk=number).header.fields
            if FIELDS_SINCE.get(name, 0) > self.level()
        ]:
            raise BrokenPromiseError(f"snapshot {number} names {later}, which level {self.level()} does not allow")
        expected, found = everything(folded), everything(decode_snapshot(data, shard=shard, chunk=number))
        if wrong := [name for name in expected if expected[name] != found[name]]:
            raise BrokenPromiseError(
                f"snapshot {number} of shard {shard} differs from its ledger in {', '.join(wrong)}"
            )
        self.story.add(_now_seconds(), "snapshot job", f"snapshot {shard}/{number}")

    def _check_records(
        self, state: ShardState, data: bytes, header: chunk.ChunkHeader, created: Mapping[int, str]
    ) -> None:
        """Check the records of a chunk against the state before it. ``created``: id → name of its new topics."""
        next_offsets: dict[tuple[int, int], int] = {}
        for row in record_rows(chunk.decode_records(data, shard=state.shard, number=header.number)[1]):
            known = state.topics_by_id.get(row["topic_id"])
            name = created[row["topic_id"]] if known is None else known.name
            tail_key = (row["topic_id"], row["segment"])
            tail = None if known is None else known.tails.get(row["segment"])
            expected = next_offsets.get(tail_key, tail.next_offset if tail else 0)
            if row["offset"] != expected:
                raise BrokenPromiseError(f"{name}: offset {row['offset']} in segment {row['segment']}, not {expected}")
            next_offsets[tail_key] = expected + 1
            if name not in (GRAVEYARD, CELLAR, PHOENIX, ASHES):  # Their programs check the order.
                self._check_counter(name, row)
            self.backlogs.record_stored(state.shard, row)
            place, content = (row["segment"], row["offset"]), (row["key"], row["value"])
            self.stored[name].append(Stored(*place, *content, row["topic_id"], row["headers"], header.at_ms))
            self.records_by_offset[name, *place] = (*content, row["headers"])

    def _check_headers(self, key: bytes, counter: int, headers: Headers) -> None:
        """Check that a record has the headers of its producer; a broker without MQTT 5 drops those of a device."""
        expected = headers_of(key, counter) if b"/" in key else ()
        if headers != expected and (headers or not key.startswith(KEY_PREFIX)):
            raise BrokenPromiseError(f"{key!r} #{counter} is stored with headers {headers}, and had {expected}")

    def _check_counter(self, topic: str, row: Mapping[str, Any]) -> None:
        """Check that the counter of a record follows the ones before it of its key."""
        counter, key = int(row["value"]), row["key"]
        self._check_headers(key, counter, row["headers"])
        highest = self.counters.get((topic, key), -1)
        if key == IMPORT_KEY and counter != highest + 1:
            raise BrokenPromiseError(f"the import stored #{counter} after #{highest}")
        if key.startswith(KEY_PREFIX):
            # Device records are stored at least once: one may repeat, but none may be skipped.
            if counter > highest + 1:
                raise BrokenPromiseError(f"{topic}: {key!r} #{counter} stored after #{highest}")
            if counter <= highest:
                self.duplicate_device_records.add((topic, row["segment"], row["offset"]))
        elif counter <= highest:
            raise BrokenPromiseError(f"{topic}: {key!r} #{counter} stored after #{highest}")
        self.counters[topic, key] = max(counter, highest)

    def chunk(self, shard: int) -> int:
        """Return the newest chunk of a shard; 0: it has none."""
        return self.states[shard].chunk if shard in self.states else 0

    def command_abandoned(self, token: str) -> None:
        """Note that a client reported a command as not executed: it must not have been, and must not be later."""
        self.abandoned_tokens.add(token)
        self._check_abandoned(token)

    def _check_token(self, state: ShardState, entry: e.AnyEntry) -> None:
        token = getattr(entry, "token", "")
        if token:
            self.executed_tokens.add(token)
            self._check_abandoned(token)
            if isinstance(entry, e.ConsumerRemoved):
                self._record_eviction(state, entry)

    def _check_abandoned(self, token: str) -> None:
        if token in self.abandoned_tokens & self.executed_tokens:
            raise BrokenPromiseError(f"command {token} was reported as not executed, and is executed")

    def _check_holders(self, state: ShardState, entry: e.SegmentGranted) -> None:
        """Check that what is granted has no holder. The fold replaces a holding of the same slice, so look before it."""
        subscription = state.subscriptions[entry.subscription_id]
        granted = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        for held, holding in subscription.holdings.items():
            if overlaps(held, granted):
                raise BrokenPromiseError(
                    f"{subscription.name}: {granted} granted to {entry.consumer} while {holding.consumer} holds {held}"
                )

    def _check_grant(self, state: ShardState, entry: e.SegmentGranted) -> None:
        subscription = state.subscriptions[entry.subscription_id]
        if isinstance(slice_of(entry.segment, entry.first_bucket, entry.end_bucket), BucketRange):
            self.partial_grants += 1
        if subscription.type != "CHECKPOINT" and entry.segment in subscription.drained:
            raise BrokenPromiseError(f"{subscription.name}: segment {entry.segment} was granted after it was drained")
        self._check_generation(state.shard, entry)
        if subscription.type != "STREAM" or subscription.name == self.rules.unordered:
            return
        layout = state.topics_by_id[entry.topic_id].layout
        for ancestor in layout.ancestors(entry.segment):
            end = layout.segments[ancestor].end_offset
            if end is None or subscription.position(ancestor) < end:
                raise BrokenPromiseError(
                    f"{subscription.name}: segment {entry.segment} granted before its ancestor {ancestor} was drained"
                )

    def _check_generation(self, shard: int, entry: e.SegmentGranted) -> None:
        """Check that generations rise: an earlier one fences."""
        name = shard, entry.subscription_id
        if entry.generation <= self.generations.get(name, 0):
            raise BrokenPromiseError(
                f"segment {entry.segment} is granted at generation {entry.generation}, and {self.generations[name]} was"
            )
        self.generations[name] = entry.generation

    def _check_acknowledgement(self, state: ShardState, entry: e.RecordsAcknowledged) -> None:
        """Check that positions never fall but by a seek, and that what counts as acknowledged was delivered."""
        subscription = state.subscriptions[entry.subscription_id]
        for segment in {each.segment for each in entry.ranges}:
            position = subscription.position(segment)
            if position < self.positions.get((state.shard, entry.subscription_id, segment), 0):
                raise BrokenPromiseError(f"{subscription.name}: the position of segment {segment} fell to {position}")
            self.positions[state.shard, entry.subscription_id, segment] = position
        for segment, offset, _ in entry.parked:
            self.handled(subscription.topic, subscription.name, segment, offset)
        new = self.backlogs.newly_acknowledged
        if missing := new - self.ever_handled[subscription.topic, subscription.name]:
            raise BrokenPromiseError(f"{subscription.name}: {min(missing)} is acknowledged, and was never handled")

    def _record_creation(self, state: ShardState, entry: e.SubscriptionCreated) -> None:
        """Expect nothing of segments that were pruned before: a client that is slowed down may come as late."""
        topic = state.subscriptions[entry.subscription_id].topic
        gone = {record.segment for record in self.stored[topic]} - state.topics[topic].layout.segments.keys()
        self.seek_positions[topic, entry.subscription].update(dict.fromkeys(gone, sys.maxsize))

    def _record_seek(self, state: ShardState, entry: e.SubscriptionSeek) -> None:
        """Expect moved segments to be delivered as if for the first time; ignore earlier generations."""
        self.seeks += 1
        subscription = state.subscriptions[entry.subscription_id]
        topic = subscription.topic
        name = topic, subscription.name
        self.first_generation_after_seek[name] = subscription.holdings.next_generation
        self.seek_positions[name].update(entry.positions)
        self.clients.moved(*name)
        for segment in entry.positions:
            self.positions.pop((state.shard, entry.subscription_id, segment), None)
        self.delivered[name] = {(s, offset) for s, offset in self.delivered[name] if s not in entry.positions}
        for record in self.stored[topic]:
            if record.segment in entry.positions:
                self.first_delivered.pop((*name, record.key), None)

    def _check_registration(self, state: ShardState, entry: e.ConsumerRegistered) -> None:
        known = state.subscriptions[entry.subscription_id]
        program = (known.topic, known.name, entry.consumer, entry.incarnation, entry.client_id)
        if self.registrations.setdefault(program, entry.subscription_id) != entry.subscription_id:
            raise BrokenPromiseError(f"{known.name}: {entry.client_id} came back after its subscription was deleted")
        if program in self.evicted_programs:
            raise BrokenPromiseError(f"{known.name}: {entry.client_id} came back after a command had evicted it")

    def _record_eviction(self, state: ShardState, entry: e.ConsumerRemoved) -> None:
        known = state.subscriptions[entry.subscription_id]
        client_id = known.consumers[entry.consumer].client_id
        self.evicted_programs.add((known.topic, known.name, entry.consumer, entry.incarnation, client_id))

    def _check_opening(self, entry: e.ProducerOpened) -> None:
        """Check that a token opens one identity: a repeated request must not open another."""
        if entry.token in self.open_tokens:
            raise BrokenPromiseError(
                f"one token opened producer {self.open_tokens[entry.token]} and producer {entry.producer_id}"
            )
        self.open_tokens[entry.token] = entry.producer_id

    def _record_expiry(self, entry: e.ProducersExpired) -> None:
        gone = set(entry.producer_ids)
        self.open_tokens = {token: opened for token, opened in self.open_tokens.items() if opened not in gone}
        self.producers_removed += len(gone)

    def _record_position(self, state: ShardState, entry: e.RecordsStored) -> None:
        if entry.producer_id is not None and entry.source_position is not None:
            name = state.producers[entry.producer_id].name
            if name is not None:
                self.source_positions[state.shard, name, entry.topic_id] = entry.source_position

    def _check_names(self, state: ShardState) -> None:
        """Check that every name still has its last position in each topic, until the topic is deleted."""
        for (shard, name, topic_id), position in self.source_positions.items():
            if shard != state.shard:
                continue
            known = state.producers.of_name(name)
            expected = position if topic_id in state.topics_by_id else None
            if known is None or known.source_positions.get(topic_id) != expected:
                raise BrokenPromiseError(f"producer {name!r} has lost its source position {position!r}")

    def _check_created_subscriptions(self, entries: Iterable[e.AnyEntry]) -> None:
        """Check that a command or a registration created each subscription: a rejected program must not create one."""
        begun = {
            entry.subscription_id: entry.subscription
            for entry in entries
            if isinstance(entry, e.SubscriptionCreated) and not entry.token
        }
        members = {entry.subscription_id for entry in entries if isinstance(entry, e.ConsumerRegistered)}
        if unused := begun.keys() - members:
            raise BrokenPromiseError(f"{[begun[number] for number in unused]} came back without a consumer")

    def _check_weights(self, state: ShardState, entry: e.SegmentWeightsSet) -> None:
        """Check that weights change only when the load has doubled or halved (rounded to whole units)."""
        known = state.subscriptions[entry.subscription_id]
        for segment, weight in entry.weights.items():
            before = known.weights.get(segment)
            if before is not None and weight < 2 * before and 2 * weight > before + 1:
                raise BrokenPromiseError(
                    f"{known.name}: segment {segment} changed its weight from {before} to {weight}"
                )
        self.weight_changes += 1

    def _check_pruning(self, state: ShardState, entry: e.SegmentsPruned) -> None:
        topic = state.topics_by_id[entry.topic_id]
        going = set(entry.segments)
        for segment in entry.segments:
            end = topic.layout.segments[segment].end_offset
            if end is None:
                raise BrokenPromiseError(f"{topic.name}: segment {segment} was pruned while it is active")
            if left := topic.layout.ancestors(segment) - going:
                raise BrokenPromiseError(f"{topic.name}: segment {segment} was pruned before its ancestors {left}")
            for subscription in topic.subscriptions.values():
                if subscription.type != "CHECKPOINT" and subscription.position(segment) < end:
                    raise BrokenPromiseError(
                        f"{subscription.name}: segment {segment} was pruned at {subscription.position(segment)} of {end}"
                    )
                counted = segment in subscription.drained or end <= subscription.progress.start_positions.get(
                    segment, 0
                )
                if is_gated(subscription.type, subscription.order) and not counted:
                    raise BrokenPromiseError(f"{subscription.name}: segment {segment} was pruned without a count")
                if segment in subscription.holdings:
                    raise BrokenPromiseError(f"{subscription.name}: segment {segment} was pruned while it is held")
        self.pruned += len(going)

    # The consumers

    def handled(self, topic: str, subscription: str, segment: int, offset: int) -> None:
        """Note that a record may be acknowledged."""
        self.ever_handled[topic, subscription].add((segment, offset))

    def check_delivery(
        self, topic: str, subscription: str, kind: str, program: str, record: ConsumedRecord, *, handled: bool = True
    ) -> None:
        """Check a record that was delivered to one run of a consumer program. ``handled``: it may be acknowledged."""
        segment, offset, generation = record.segment, record.offset, record.generation
        key, value = record.key, record.value
        bucket = program, segment, key_bucket(key, KEY_BUCKETS)
        before = self.delivered_generations.get(bucket, 0)
        if generation < before:
            raise BrokenPromiseError(
                f"{program}: {segment}:{offset} of generation {generation} was delivered after generation {before}"
            )
        self.delivered_generations[bucket] = generation
        self.rules.holdings.check_delivery((program, segment, generation), offset, bucket[2], is_attempt=not handled)
        if handled:
            self.handled(topic, subscription, segment, offset)
        if self.records_by_offset.get((topic, segment, offset)) != (key, value, record.headers):
            raise BrokenPromiseError(
                f"{subscription}: {key!r} {value!r} was delivered from {segment}:{offset}, which holds another record"
            )
        if generation < self.first_generation_after_seek[topic, subscription]:
            return
        known = {"ordered": kind == "STREAM", "generation": generation * self.rules.holdings.leases_end}
        self.clients.delivered(topic, subscription, key, int(value), place=f"{segment}:{offset}", **known)
        seen = self.delivered[topic, subscription]
        if (segment, offset) in seen:
            return
        seen.add((segment, offset))
        if kind != "STREAM" or (topic, segment, offset) in self.duplicate_device_records:
            return
        counter = int(value)
        highest = self.first_delivered.get((topic, subscription, key), -1)
        if counter <= highest:
            raise BrokenPromiseError(f"{subscription}: {key!r} #{counter} first delivered after #{highest}")
        self.first_delivered[topic, subscription, key] = counter

    # The end of a run

    def check_state(self, state: ShardState, owner: str, *, leads: bool = False) -> None:
        """Check that the state in memory equals the fold of the ledger. ``leads``: its daemon considers itself leader."""
        expected = self.states.get(state.shard)
        if expected is None or state.chunk != expected.chunk:
            return  # it has not read, or not written, everything yet
        if leads and state.term.leader_epoch < expected.term.leader_epoch:
            return  # it is writing a number that a later term has taken, and will be refused
        folded, kept = everything(expected), everything(state)
        if wrong := [name for name in folded if folded[name] != kept[name]]:
            raise BrokenPromiseError(f"the state of {owner} differs from the ledger in {', '.join(wrong)}")

    def check_nothing_lost(self, topic: str, committed: dict[bytes, list[int]]) -> None:
        """Check that every record that was reported as committed is in the ledger."""
        held = defaultdict(set)
        for record in self.stored[topic]:
            held[record.key].add(int(record.value))
        for key, counters in committed.items():
            if missing := set(counters) - held[key]:
                raise BrokenPromiseError(f"{topic}: {key!r} {sorted(missing)[:5]} was committed and is lost")

    def undelivered(self, topic: str, subscription: str) -> set[tuple[int, int]]:
        """Return (segment, offset) of records not delivered since the last seek."""
        floors = self.seek_positions[topic, subscription]
        owed = {(r.segment, r.offset) for r in self.stored[topic] if r.offset >= floors.get(r.segment, 0)}
        return owed - self.delivered[topic, subscription]

    def check_everything_delivered(self, topic: str, subscription: str) -> None:
        """Check that every record was delivered, except those that a seek skipped."""
        missing = self.undelivered(topic, subscription)
        if missing:
            raise BrokenPromiseError(f"{subscription}: {len(missing)} records never delivered, e.g. {min(missing)}")


def _level_of(entry: e.AnyEntry) -> int:
    """Return the first feature level that allows ``entry``."""
    if isinstance(entry, e.RecordsStored) and len(entry.digest) == MURMUR_DIGEST_BYTES:
        return MURMUR_DIGESTS
    return SHARDS_GROW if isinstance(entry, e.ShardsGrown) else FIRST


def _now_seconds() -> float:
    return asyncio.get_running_loop().time()
