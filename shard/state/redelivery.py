"""The records of a subscription that are being tried, have failed or are parked, as a fold over ledger entries. Pure.

1. A record is in it from the first delivery that begins or fails until it is acknowledged, its segment is pruned, or
   the subscription is moved. Each record is in one key bucket, and only that bucket's acknowledgement settles it.
2. A delivery that has begun belongs to a grant. It fails if it is acknowledged negatively, and if the holder of the
   grant is lost. A holder that hands its segment back fails nothing: the next holder delivers the record once more.
3. A record that has failed `max_deliveries` times is dead. Dead records are numbered in the order in which they died,
   and their ledger times never fall: (time, number) orders them. Also after a ledger was put back to an older state,
   unless its clock is behind that of the lost history.
4. STREAM: a record of a parked key is dead once it is acknowledged, until it is stored in the dead-letter topic.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, key_bucket, segment_hash


class ParkedKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    """Rises each time that a key is parked, this one again as well: the order of the list."""
    since_ms: int
    reason: str
    topic: str
    """The dead-letter topic at that time. It does not change: the records of the key are in one topic."""
    last: int
    resumed: int

    @property
    def records(self) -> int:
        """Parked records that were not resumed."""
        return self.last - self.resumed


@dataclass(slots=True)
class ParkedKeys:
    """The parked keys of a STREAM subscription, as a fold over ledger entries.

    1. A key is parked from its `KeyParked` to its `KeyUnparked`.
    2. Its records have the numbers ``resumed + 1`` to ``last``. Numbers of a key never repeat, also not when it is
       parked again: it continues with a number that no record of the subscription has had.
    3. While it is being resumed, its consumer delivers the records up to ``last`` in order. Records that it reads
       meanwhile are parked behind them. A command that drops them moves ``resumed`` to ``last``, and resumes the key.
    """

    keys: dict[bytes, ParkedKey] = field(default_factory=dict)
    """In the order of their numbers."""
    resuming: dict[bytes, None] = field(default_factory=dict)
    """Those that are being resumed."""
    next_number: int = 1
    _by_hash: list[tuple[int, bytes]] = field(init=False, repr=False, compare=False)
    """The keys, sorted by their hashes."""

    def __post_init__(self) -> None:
        self._by_hash = sorted((segment_hash(key), key) for key in self.keys)

    def within(self, first_hash: int, last_hash: int) -> list[bytes]:
        """Return the parked keys that a segment with these hashes has."""
        if not self._by_hash:
            return []
        first = bisect_left(self._by_hash, first_hash, key=itemgetter(0))
        end = bisect_left(self._by_hash, last_hash + 1, key=itemgetter(0))
        return [key for _, key in self._by_hash[first:end]]

    def park(self, entry: e.KeyParked, topic: str, at_ms: int, last: int) -> None:
        """Park a key, or end its resumption. ``last``: the highest number of a dead letter so far."""
        self.resuming.pop(entry.key, None)
        if (known := self.keys.pop(entry.key, None)) is None:
            insort(self._by_hash, (segment_hash(entry.key), entry.key))
            known = ParkedKey(0, at_ms, "", topic, last, last)
        self.keys[entry.key] = replace(known, number=self.next_number, reason=entry.reason)
        self.next_number += 1

    def add_record(self, key: bytes) -> ParkedKey:
        known = self.keys[key]
        self.keys[key] = replace(known, last=known.last + 1)
        return self.keys[key]

    def resume(self, entry: e.KeyResumed) -> None:
        if (known := self.keys.get(entry.key)) is not None:
            resumed = known.last if entry.dropped else known.resumed
            self.keys[entry.key] = replace(known, resumed=resumed)
            self.resuming[entry.key] = None

    def processed(self, key: bytes, number: int) -> None:
        """Move behind a resumed record."""
        self.keys[key] = replace(self.keys[key], resumed=number)

    def unpark(self, key: bytes) -> None:
        del self.keys[key]
        self.resuming.pop(key, None)
        del self._by_hash[bisect_left(self._by_hash, (segment_hash(key), key))]


class Attempts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    bucket: int
    failures: int = 0
    generation: int = 0
    """The grant under which a delivery has begun; 0: none has."""
    not_before_ms: int = 0
    """Ledger time before which it is not delivered again."""
    reason: str = ""
    """Why the newest delivery failed."""
    dead_letter: int = 0
    """Its number among the dead records; 0: it is not dead."""
    died_at_ms: int = 0
    topic: str = ""
    """The dead-letter topic at its death. It does not change: a copy may be there already."""
    key: bytes = b""
    """The parked key that it has; empty: none."""
    number: int = 0
    """Its number among the records of that key."""


@dataclass(slots=True)
class Redelivery:
    """The records of one subscription that were begun or have failed, and the policy that they are subject to."""

    policy: e.DeliveryPolicy = field(default_factory=e.DeliveryPolicy)
    secret: str = ""
    """Token of the first policy: by it, consumers of different users share the producer of dead letters."""
    attempts: dict[int, dict[int, Attempts]] = field(default_factory=dict)
    """Segment → offset → its record. No segment is empty."""
    dead: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of a dead record → (segment, offset), in order."""
    next_number: int = 1
    parked: ParkedKeys = field(default_factory=ParkedKeys)

    def of(self, segment: int, offset: int) -> Attempts | None:
        """Return what happened to a record; None: nothing that counts."""
        return self.attempts.get(segment, {}).get(offset)

    def records(self, segment: int) -> int:
        """Return the number of records of ``segment`` that are kept here."""
        return len(self.attempts.get(segment, ()))

    @property
    def failed(self) -> list[Attempts]:
        """The records that have failed and are not dead."""
        kept = (each for known in self.attempts.values() for each in known.values())
        return [each for each in kept if each.failures and not each.dead_letter]

    def apply(self, entry: e.SubscriptionEntry, at_ms: int) -> None:
        """Fold one entry. ``at_ms`` is the time of its chunk."""
        match entry:
            case e.DeliveryPolicySet():
                self.policy, self.secret = entry.policy, self.secret or entry.token
            case e.DeliveriesBegun():
                for segment, offset, bucket, generation in entry.records:
                    known = self.attempts.setdefault(segment, {})
                    before = known.get(offset, Attempts(bucket))
                    known[offset] = msgspec.structs.replace(before, generation=generation)
            case e.DeliveriesFailed():
                for segment, offset, bucket, not_before_ms, reason in entry.records:
                    self._fail(segment, offset, bucket, not_before_ms, reason, at_ms)
            case e.KeyParked():
                self.parked.park(entry, self.policy.dead_letter_topic, at_ms, self.next_number - 1)
            case e.KeyResumed():
                self.parked.resume(entry)
            case e.KeyUnparked():
                self.parked.unpark(entry.key)
            case e.ParkedRecordsStored():
                for number in entry.numbers:
                    self._remove(*self.dead[number])
            case _:
                raise AssertionError(f"an entry that nothing folds: {entry}")

    def park(self, segment: int, offset: int, key: bytes, at_ms: int) -> None:
        """Count an acknowledged record of a parked key as dead, unless it is that already: after a seek back."""
        if self.of(segment, offset) is None:
            parked = self.parked.add_record(key)
            bucket, reason, topic = key_bucket(key, KEY_BUCKETS), parked.reason, parked.topic
            dead = Attempts(bucket, 0, 0, 0, reason, self.next_number, at_ms, topic, key, parked.last)
            self.attempts.setdefault(segment, {})[offset] = dead
            self.dead[self.next_number] = segment, offset
            self.next_number += 1

    def _fail(self, segment: int, offset: int, bucket: int, not_before_ms: int, reason: str, at_ms: int) -> None:
        known = self.attempts.setdefault(segment, {})
        failures = known.get(offset, Attempts(bucket)).failures + 1
        failed = Attempts(bucket, failures, not_before_ms=not_before_ms, reason=reason)
        if 0 < self.policy.max_deliveries <= failures:
            failed = Attempts(bucket, failures, 0, 0, reason, self.next_number, at_ms, self.policy.dead_letter_topic)
            self.dead[self.next_number] = segment, offset
            self.next_number += 1
        known[offset] = failed

    def release(self, segment: int, generation: int, *, lost: str, at_ms: int) -> None:
        """End the deliveries under a grant. ``lost``: why its holder was lost, which fails them; empty: it was not."""
        for offset, each in list(self.attempts[segment].items()) if segment in self.attempts else ():
            if each.generation != generation:
                continue
            if lost:
                self._fail(segment, offset, each.bucket, 0, lost, at_ms)
            elif each.failures:
                self.attempts[segment][offset] = msgspec.structs.replace(each, generation=0)
            else:
                self._remove(segment, offset)

    def settle(self, ranges: Iterable[tuple[int, int, int, range]]) -> None:
        """Remove the records in acknowledged ``ranges``: (segment, first offset, end offset, key buckets)."""
        search = OffsetSearch(self.attempts)
        for segment, first, end, buckets in ranges:
            for offset in search.within(segment, first, end):
                if (each := self.of(segment, offset)) is not None and each.bucket in buckets:
                    self._remove(segment, offset)

    def forget(self, segments: Iterable[int]) -> None:
        """Remove all records of ``segments``, which were moved or pruned."""
        for segment in segments:
            for offset in list(self.attempts.get(segment, ())):
                self._remove(segment, offset)

    def _remove(self, segment: int, offset: int) -> None:
        known = self.attempts[segment]
        self.dead.pop(known.pop(offset).dead_letter, None)
        if not known:
            del self.attempts[segment]


class OffsetSearch:
    """Finds kept records in ranges of offsets. A segment is sorted once, whatever the number of its ranges."""

    def __init__(self, attempts: dict[int, dict[int, Attempts]]) -> None:
        self._attempts = attempts
        self._sorted: dict[int, list[int]] = {}

    def within(self, segment: int, first: int, end: int) -> list[int]:
        """Return the offsets from ``first`` up to ``end`` that had a record when the segment was first searched."""
        if segment not in self._sorted:
            self._sorted[segment] = sorted(self._attempts.get(segment, ()))
        offsets = self._sorted[segment]
        return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]
