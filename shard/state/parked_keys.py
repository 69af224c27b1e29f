"""The parked keys of a STREAM subscription, as a fold over ledger entries. Pure.

1. A key is parked from its `KeyParked` to its `KeyUnparked`.
2. Its records have the numbers ``resumed + 1`` to ``last``. Numbers of a key never repeat, also not when it is parked
   again: it continues with a number that no record of the subscription has had.
3. While it is being resumed, its consumer delivers the records up to ``last`` in order. Records that it reads meanwhile
   are parked behind them. A command that drops them moves ``resumed`` to ``last``, and resumes the key.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from headgate.model import entries as e
from headgate.model.hashing import segment_hash


class ParkedKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    """Rises with each key that is parked: the order of the list."""
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
        if (known := self.keys.get(entry.key)) is not None:
            self.keys[entry.key] = replace(known, reason=entry.reason)
            return
        self.keys[entry.key] = ParkedKey(self.next_number, at_ms, entry.reason, topic, last, last)
        self.next_number += 1
        insort(self._by_hash, (segment_hash(entry.key), entry.key))

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
