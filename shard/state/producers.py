"""The producers of a shard: their identities, names, positions and finished batches. Part of the fold.

A named producer stays until it is deleted; only its deduplication window expires. An anonymous one
is removed as a whole.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import Final

import msgspec

from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS

MAX_EXPIRED_AT_ONCE: Final = 2000
"""Producers per entry and kind: applying it takes a few milliseconds, and the rest follows with the next tick."""
WINDOW: Final = 128
"""Finished batches stored per producer, and the limit for batches in flight (Redpanda: five)."""


class FinishedBatch(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    chunk: int
    topic_id: int
    """The topic that stores it, which may have been deleted since."""
    digest: bytes
    """`headgate.protocol.codec` of its content."""
    placements: list[e.Placement]


_NO_BATCHES: Final = msgspec.msgpack.encode([])


class FinishedBatches:
    """The deduplication window of one producer: its last `WINDOW` batches, newest last. Items are copies.

    Each batch is stored as a msgpack array, 85 bytes instead of 500: a shard may have 100,000 producers,
    and most batches are never read. A window from a snapshot stays one string of bytes until it is used: a
    new leader restores a million of them, and most of their producers are idle. A window without batches
    is a string that all share, because an empty deque takes 700 bytes.
    """

    __slots__ = ("_capacity", "_restored", "_unpacked")

    def __init__(self, packed: bytes = _NO_BATCHES) -> None:
        """``packed``: what `pack` returned."""
        self._restored = packed
        self._unpacked: deque[bytes] | None = None
        self._capacity = 0
        """Batches that are known to displace only durable ones; less than 1: to be counted again."""

    def pack(self) -> bytes:
        return self._restored if self._unpacked is None else _ENCODER.encode(list(self._unpacked))

    @property
    def _packed(self) -> deque[bytes]:
        if self._unpacked is None:
            self._unpacked = deque(_WINDOW_DECODER.decode(self._restored), maxlen=WINDOW)
            self._restored = _NO_BATCHES
        return self._unpacked

    def append(self, batch: FinishedBatch) -> None:
        """Add the newest batch, and drop the oldest if the window is full."""
        (self._unpacked or self._packed).append(_ENCODER.encode(batch))
        self._capacity -= 1

    def has_capacity(self, durable: int) -> bool:
        """Return whether one more batch displaces none of a chunk after ``durable``, which never decreases."""
        if self._capacity < 1:  # Once in a hundred batches, because few are in flight.
            self._capacity = WINDOW - len(self) + bisect_right(self, durable, key=attrgetter("chunk"))
        return self._capacity > 0

    def clear(self) -> None:
        self._restored, self._unpacked = _NO_BATCHES, None

    def __len__(self) -> int:
        return 0 if self._unpacked is None and self._restored == _NO_BATCHES else len(self._packed)

    def __getitem__(self, index: int) -> FinishedBatch:
        return _DECODER.decode(self._packed[index])

    def __iter__(self) -> Iterator[FinishedBatch]:
        return map(_DECODER.decode, self._packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FinishedBatches) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"FinishedBatches({list(self)})"


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(FinishedBatch)
_WINDOW_DECODER: Final = msgspec.msgpack.Decoder(list[bytes])


MAX_SOURCE_POSITIONS: Final = 1000
"""Topics in which one name can have a position: as many as a user may have by default, 1 MB."""
MAX_DELETED_NAMES: Final = 10_000
"""Per shard; beyond it, the earliest are forgotten. About 100 bytes each."""


class ProducerState(msgspec.Struct, gc=False):
    """The identity of one producer, and the end of its history.

    The garbage collector leaves it out: it refers to nothing that could refer to it, and a daemon has hundreds of
    thousands, which block the loop while they are traversed.
    """

    producer_id: int
    producer_epoch: int
    name: str | None
    token: str
    next_sequence: int = 0
    previous_next_sequence: int | None = None
    """Sequence that the epoch before the present one reached: all below it is stored, and nothing else ever will be.
    None: there was none."""
    finished: FinishedBatches = msgspec.field(default_factory=FinishedBatches)
    """Empty for a named producer that has been idle for too long."""
    source_positions: dict[int, bytes] = {}
    """Topic id → how far a named producer has read its source, for topics that exist."""
    incarnation: int = 0
    """The start of the program that holds the name: it rises with each. 0 for an anonymous producer."""
    first_token: str | None = None
    """Token of the opening that created the producer; None: ``token``, because it has not been opened again."""
    last_chunk: int = 0
    last_at_ms: int = 0
    user: str = ANONYMOUS
    """Who opened it. Only this user can use it."""

    @property
    def new(self) -> bool:
        """Whether the producer did not exist before its present epoch."""
        return self.first_token is None


class DeletedName(msgspec.Struct, frozen=True):
    """A name that a command deleted. A late copy of a request that opened it must not bring it back."""

    name: str
    incarnation: int
    """The start of the last program that held it. One of a later start may open the name again."""
    at_ms: int


@dataclass(slots=True)
class _ProducersOfUser:
    anonymous: OrderedDict[int, ProducerState] = field(default_factory=OrderedDict)
    """Least recently used first."""
    named: int = 0


class Producers(Mapping[int, ProducerState]):
    """Producer id → producer. Each is in one of three groups, of which two are ordered by use."""

    def __init__(self) -> None:
        self.anonymous: OrderedDict[int, ProducerState] = OrderedDict()
        """Producers without a name, least recently used first."""
        self.with_window: OrderedDict[int, ProducerState] = OrderedDict()
        """Named producers with finished batches, least recently used first."""
        self.without_window: dict[int, ProducerState] = {}
        """Named producers without finished batches."""
        self._names: dict[str, int] = {}
        self._ordered_names: list[str] = []
        self._tokens: dict[str, int] = {}
        """Tokens of the first and of the last opening → producer id."""
        self.deleted: list[DeletedName] = []
        """Latest last."""
        self._of_users: defaultdict[str, _ProducersOfUser] = defaultdict(_ProducersOfUser)

    def __getitem__(self, producer_id: int) -> ProducerState:
        found = self.anonymous.get(producer_id) or self.with_window.get(producer_id)
        return found or self.without_window[producer_id]

    def __iter__(self) -> Iterator[int]:
        """Iterate over ids; `restore` in this order gives the same groups in the same order."""
        return chain.from_iterable(self._groups())

    def __len__(self) -> int:
        return sum(map(len, self._groups()))

    @property
    def named(self) -> int:
        return len(self._names)

    def count_of(self, user: str) -> int:
        found = self._of_users.get(user)
        return 0 if found is None else found.named + len(found.anonymous)

    def anonymous_of(self, user: str) -> Iterator[ProducerState]:
        """Iterate over the anonymous producers of ``user``, least recently used first."""
        found = self._of_users.get(user)
        return iter(()) if found is None else iter(found.anonymous.values())

    def of_name(self, name: str) -> ProducerState | None:
        producer_id = self._names.get(name)
        return None if producer_id is None else self[producer_id]

    def opened_by(self, token: str) -> ProducerState | None:
        """Return the producer whose first or last opening had ``token``."""
        producer_id = self._tokens.get(token)
        return None if producer_id is None else self[producer_id]

    def deleted_incarnation(self, name: str, forgotten_ms: int) -> int:
        """Return up to which incarnation ``name`` cannot be opened, because it was deleted after that time; or -1."""
        found = (each.incarnation for each in self.deleted if each.name == name and each.at_ms > forgotten_ms)
        return max(found, default=-1)

    def named_after(self, name: str | None) -> Iterator[ProducerState]:
        """Iterate over named producers by name, from the first one after ``name`` on."""
        first = 0 if name is None else bisect_right(self._ordered_names, name)
        return (self[self._names[each]] for each in islice(self._ordered_names, first, None))

    def open(self, entry: e.ProducerOpened, chunk: int, at_ms: int) -> None:
        before = self.remove(entry.producer_id if entry.replaced_id is None else entry.replaced_id)
        self.restore(
            ProducerState(
                entry.producer_id,
                entry.producer_epoch,
                entry.name if before is None else entry.name or before.name,
                entry.token,
                previous_next_sequence=None if before is None else before.next_sequence,
                source_positions={} if before is None else before.source_positions,
                incarnation=entry.incarnation if before is None else max(entry.incarnation, before.incarnation),
                first_token=None if before is None else before.first_token or before.token,
                last_chunk=chunk,
                last_at_ms=at_ms,
                user=entry.user,
            )
        )

    def finish_batch(
        self, producer_id: int, producer_epoch: int, batch: FinishedBatch, source_position: bytes | None, at_ms: int
    ) -> None:
        """Add the batch that ``batch.chunk`` stores, of ledger time ``at_ms``."""
        producer = self[producer_id]
        if producer_epoch > producer.producer_epoch:
            # The client raised its own epoch after a gap: a new incarnation with its own sequence.
            producer.previous_next_sequence = producer.next_sequence
            producer.producer_epoch, producer.next_sequence = producer_epoch, 0
            producer.finished.clear()
        assert batch.sequence == producer.next_sequence, f"sequence {batch.sequence} is not the next one"
        producer.next_sequence = batch.sequence + 1
        producer.finished.append(batch)
        producer.last_chunk, producer.last_at_ms = batch.chunk, at_ms
        if source_position is not None:
            assert batch.topic_id is not None, "records belong to a topic"
            producer.source_positions[batch.topic_id] = source_position
        if producer.name is None:
            self.anonymous.move_to_end(producer_id)
            self._of_users[producer.user].anonymous.move_to_end(producer_id)
        else:
            self.without_window.pop(producer_id, None)
            self.with_window[producer_id] = producer
            self.with_window.move_to_end(producer_id)

    def delete(self, producer_id: int, at_ms: int, forgotten_ms: int) -> None:
        """Remove a named producer for good, and remember its name; forget those deleted up to ``forgotten_ms``."""
        producer = self.remove(producer_id)
        assert producer is not None, f"producer {producer_id} does not exist"
        assert producer.name is not None, "a command deletes a named producer"
        kept = [each for each in self.deleted if each.at_ms > forgotten_ms]
        self.deleted = [*kept, DeletedName(producer.name, producer.incarnation, at_ms)][-MAX_DELETED_NAMES:]

    def drop_positions(self, topic_id: int) -> None:
        """Forget the positions in a topic, which is deleted: one that is created again under its name has others."""
        for producer_id in self._names.values():
            self[producer_id].source_positions.pop(topic_id, None)

    def expired(
        self, *, age_ms: Callable[[int], int], idle_ms: int, max_anonymous: int, durable: int
    ) -> e.ProducersExpired | None:
        """Decide what a shard forgets of its producers.

        * An anonymous producer is forgotten when it has been idle for too long, or when there are too many: then the
          least recently used first.
        * Of a named producer only the deduplication window is dropped, after the same idle time. Its name, id, epoch,
          next sequence and source position stay until it is deleted.
        * Nothing that a batch in flight has used is forgotten: a repetition of the batch needs it.

        ``age_ms`` returns the age of a ledger time. ``durable``: the newest durable chunk.
        """

        def idle(group: Mapping[int, ProducerState], surplus: int) -> Iterator[int]:
            """Yield the ids of ``group``, least recently used first, until one that has to stay."""
            for index, (producer_id, producer) in enumerate(group.items()):
                expendable = index < surplus or age_ms(producer.last_at_ms) > idle_ms
                if not expendable or producer.last_chunk > durable:
                    return
                yield producer_id

        surplus = len(self.anonymous) - max_anonymous
        removed = list(islice(idle(self.anonymous, surplus), MAX_EXPIRED_AT_ONCE))
        windows = list(islice(idle(self.with_window, 0), MAX_EXPIRED_AT_ONCE))
        return e.ProducersExpired(producer_ids=removed, windows=windows) if removed or windows else None

    def expire(self, entry: e.ProducersExpired) -> None:
        for producer_id in entry.producer_ids:
            self.remove(producer_id)
        for producer_id in entry.windows:
            producer = self.with_window.pop(producer_id)
            producer.finished.clear()
            self.without_window[producer_id] = producer

    def restore(self, producer: ProducerState) -> None:
        """Add ``producer``, the most recently used one of its group. A snapshot has a million of them."""
        producer_id, of_user = producer.producer_id, self._of_users[producer.user]
        if producer.name is None:
            self.anonymous[producer_id] = of_user.anonymous[producer_id] = producer
        else:
            of_user.named += 1
            group = self.with_window if producer.finished else self.without_window
            group[producer_id] = producer
            self._names[producer.name] = producer_id
            insort(self._ordered_names, producer.name)
        self._tokens[producer.token] = producer_id
        if producer.first_token is not None:
            self._tokens[producer.first_token] = producer_id

    def remove(self, producer_id: int) -> ProducerState | None:
        producer = self.get(producer_id)
        if producer is None:
            return None
        for group in self._groups():
            group.pop(producer_id, None)
        self._tokens.pop(producer.token, None)
        if producer.first_token is not None:
            self._tokens.pop(producer.first_token, None)
        of_user = self._of_users[producer.user]
        if producer.name is None:
            del of_user.anonymous[producer_id]
        else:
            of_user.named -= 1
            del self._names[producer.name]
            del self._ordered_names[bisect_left(self._ordered_names, producer.name)]
        if not of_user.named and not of_user.anonymous:
            del self._of_users[producer.user]
        return producer

    def _groups(self) -> tuple[dict[int, ProducerState], ...]:
        return self.anonymous, self.with_window, self.without_window
