"""Encode and decode the state of a shard. A snapshot of chunk 42 is the state after chunks 1 to 42. Pure.

No I/O. Raises SnapshotError for an unusable object, LedgerFormatError for an older format.

1. A snapshot names all its fields. One with an unknown field was written by a newer version and is
   rejected: ignoring the field would lose state. A missing field takes its default, which must mean
   its absence. Where that is impossible, raise `FORMAT`.
2. Damage is detected: a checksum covers every byte, and the header counts the parts.
3. It is decoded in steps (`shard.steps`) of some milliseconds, so that a daemon can serve other shards meanwhile.
"""

import dataclasses
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, Final

import msgspec

from controller.leadership.policy.feature_levels import FIRST, SHARDS_GROW, supported
from headgate.errors import LedgerError
from headgate.ledger import checksum
from headgate.ledger.objects import check_format, snapshot_path
from headgate.model.entries import TermStarted
from headgate.model.layout import SegmentSlice
from headgate.model.positions import OffsetRange, OffsetRanges
from shard.state.consumers import Consumers, Holding, Holdings, RegisteredConsumer, RemovedConsumer
from shard.state.ledger_time import LedgerTime
from shard.state.producers import DeletedName, FinishedBatch, FinishedBatches, ProducerState
from shard.state.progress import Progress
from shard.state.shard_state import DeletedMembers, IdRange, ShardState, Terms, Tombstone
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.steps import Steps

# Topics. The state of each subscription is one flat object, whatever its classes are. The fields of the state's own
# dataclasses are stored under their names, so a new one is stored as well.

_Fields = list[tuple[str, Any, Any]]


def _fields(kind: Any, *, without: tuple[str, ...] = ()) -> _Fields:
    """Return name, type and definition of the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    return [(each.name, hints[each.name], copy(each)) for each in dataclasses.fields(kind) if each.name not in without]


_OF_SUBSCRIPTION: Final = _fields(Subscription, without=("consumers", "holdings", "progress"))
_OF_PROGRESS: Final = _fields(Progress)
_OF_TOPIC: Final = _fields(Topic, without=("subscriptions",))
_OF_PARTS: Final[_Fields] = [
    ("consumers", dict[str, RegisteredConsumer], dataclasses.field(default_factory=dict)),
    ("removed_consumers", list[RemovedConsumer], dataclasses.field(default_factory=list)),
    ("unused_since_ms", int | None, None),
    ("holdings", dict[SegmentSlice, Holding], dataclasses.field(default_factory=dict)),
    ("next_generation", int, 1),
]
StoredSubscription: Final[Any] = dataclasses.make_dataclass(
    "Subscription", [*_OF_SUBSCRIPTION, *_OF_PROGRESS, *_OF_PARTS], slots=True
)
_LAST: Final[_Fields] = [("subscriptions", dict[str, StoredSubscription], dataclasses.field(default_factory=dict))]
StoredTopic: Final[Any] = dataclasses.make_dataclass("Topic", [*_OF_TOPIC, *_LAST], slots=True)


def _values(source: Any, fields: _Fields) -> dict[str, Any]:
    return {name: getattr(source, name) for name, *_ in fields}


def stored(topic: Topic) -> Any:
    """Return ``topic`` as it is stored: a `StoredTopic`."""
    subscriptions = {
        name: StoredSubscription(
            **_values(each, _OF_SUBSCRIPTION),
            **_values(each.progress, _OF_PROGRESS),
            consumers=dict(each.consumers),
            removed_consumers=each.consumers.removed,
            unused_since_ms=each.consumers.unused_since_ms,
            holdings=dict(each.holdings),
            next_generation=each.holdings.next_generation,
        )
        for name, each in topic.subscriptions.items()
    }
    return StoredTopic(**_values(topic, _OF_TOPIC), subscriptions=subscriptions)


def restored(found: Any) -> Topic:
    """Return the topic that was stored as ``found``, a `StoredTopic`."""
    subscriptions = {
        name: Subscription(
            **_values(each, _OF_SUBSCRIPTION),
            consumers=Consumers(each.consumers, each.removed_consumers, each.unused_since_ms),
            holdings=Holdings(each.holdings, each.next_generation),
            progress=Progress(**_values(each, _OF_PROGRESS)),
        )
        for name, each in found.subscriptions.items()
    }
    return Topic(**_values(found, _OF_TOPIC), subscriptions=subscriptions)


FORMAT: Final = 7
FIELDS_SINCE: Final[dict[str, int]] = {"_Core.shard_counts": SHARDS_GROW}
"""Field → the feature level that allows it. Below that level it has its default, and a snapshot does not name it: the
version before can read it."""
PRODUCERS_PER_BLOCK: Final = 500
BATCHES_PER_BLOCK: Final = 1000
"""Finished batches of those producers: 10 ms to decode if each batch has records in four segments."""
BYTES_PER_COST: Final = 16
"""Fewest compressed bytes that are decoded at the cost of one unit: producers without batches."""
_COMPRESSION: Final = 1
"""The lowest level. State is repetitive, and higher levels save little more."""


class SnapshotError(LedgerError):
    """A snapshot cannot be used; the text names it. An older one, or the whole ledger, can replace it."""


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    shard: int
    chunk: int
    written_at_ms: int
    """Clock of its writer, milliseconds since 1970."""
    fields: list[str]
    """All fields that its parts contain, as ``Class.field``."""


class _Core(msgspec.Struct, kw_only=True):
    """State that belongs to no topic and no producer."""

    time: LedgerTime
    leader_epoch: int
    leader_instance: str
    trimmed_below: int
    terms: Terms
    next_id: int
    shard_counts: tuple[int, ...] = ()
    tombstones: dict[tuple[int, int], Tombstone]
    deleted_members: DeletedMembers
    commands: dict[str, int]
    deleted_producers: list[DeletedName]
    topic_count: int
    producer_count: int


_OF_STATE: Final = tuple(name for name in _Core.__struct_fields__ if name in vars(ShardState(0)))


class _File(msgspec.Struct, kw_only=True):
    header: SnapshotHeader
    core: bytes
    topics: list[bytes]
    producers: list[bytes]
    """In the order in which they are restored."""


def encode_snapshot(state: ShardState, *, written_at_ms: int, level: int = supported()[1]) -> bytes:
    """Return ``state``, the state after a complete chunk, as bytes. ``level``: the feature level of the cluster."""
    fields = sorted(name for name in FIELDS if FIELDS_SINCE.get(name, FIRST) <= level)
    header = SnapshotHeader(
        format=FORMAT, shard=state.shard, chunk=state.chunk, written_at_ms=written_at_ms, fields=fields
    )
    core = _Core(
        **{name: getattr(state, name) for name in _OF_STATE},
        next_id=state.ids.number,
        shard_counts=state.ids.shard_counts,
        leader_epoch=state.term.leader_epoch,
        leader_instance=state.term.instance,
        deleted_producers=state.producers.deleted,
        topic_count=len(state.topics),
        producer_count=len(state.producers),
    )
    file = _File(
        header=header,
        core=_compress(core),
        topics=[_compress(stored(topic)) for topic in state.topics.values()],
        producers=[_compress(block) for block in _producer_blocks(state.producers.values())],
    )
    return checksum.seal(_ENCODER.encode(file))


def decode_steps(data: bytes, *, shard: int, chunk: int) -> Steps[ShardState]:
    """Decode ``data`` part by part and return the state at the end; raises SnapshotError."""
    where = snapshot_path(shard, chunk)
    file = decode_file(data, shard=shard, chunk=chunk)
    yield _cost(file.core)
    core = _decompress(file.core, _Core, where)
    state = ShardState(shard)
    state.chunk = chunk
    for name in _OF_STATE:
        setattr(state, name, getattr(core, name))
    newest_id = core.terms.newest_id
    state.ids = IdRange(core.shard_counts, core.next_id, newest_id)
    state.term = TermStarted(leader_epoch=core.leader_epoch, instance=core.leader_instance, term_id=newest_id)
    state.producers.deleted = core.deleted_producers
    for part in file.topics:
        yield _cost(part)
        topic = restored(_decompress(part, StoredTopic, where))
        state.topics[topic.name] = state.topics_by_id[topic.topic_id] = topic
        state.subscriptions.update((each.subscription_id, each) for each in topic.subscriptions.values())
        state.usage.add_topic(topic)
    for part in file.producers:
        yield _cost(part)
        for producer in _decompress(part, list[ProducerState], where):
            state.producers.restore(producer)
    decoded, stated = (len(state.topics), len(state.producers)), (core.topic_count, core.producer_count)
    if decoded != stated:
        raise SnapshotError(f"{where} has {decoded} topics and producers, and states {stated}")
    return state


def _cost(part: bytes) -> int:
    return len(part) // BYTES_PER_COST


def decode_file(data: bytes, *, shard: int, chunk: int) -> _File:
    """Return the parts of the snapshot ``data``; raises SnapshotError if it is damaged or of a newer version."""
    where = snapshot_path(shard, chunk)
    try:
        checksum.verify(data)
        body = memoryview(data)[checksum.SEAL_BYTES :]
        found = _FORMATS.decode(body).header.format
        if found > FORMAT:
            raise SnapshotError(f"{where} was written by a newer version: it has format {found}; run that version")
        check_format(where, found, FORMAT)
        file = _FILES.decode(body)
    except (checksum.ChecksumError, msgspec.DecodeError) as error:
        raise SnapshotError(f"{where} is not a snapshot, or is damaged: {error}") from error
    if (file.header.shard, file.header.chunk) != (shard, chunk):
        raise SnapshotError(f"{where} states that it is of chunk {file.header.chunk}, shard {file.header.shard}")
    if unknown := sorted(set(file.header.fields) - FIELDS):
        fields = ", ".join(unknown[:3])
        raise SnapshotError(f"{where} was written by a newer version: it has {fields}; run that version")
    return file


def _producer_blocks(producers: Iterable[ProducerState]) -> Iterator[list[ProducerState]]:
    block: list[ProducerState] = []
    batches = 0
    for producer in producers:
        if block and (len(block) == PRODUCERS_PER_BLOCK or batches + len(producer.finished) > BATCHES_PER_BLOCK):
            yield block
            block, batches = [], 0
        block.append(producer)
        batches += len(producer.finished)
    if block:
        yield block


def _fields_of(kinds: Iterable[Any]) -> Iterator[str]:
    """Yield ``Class.field`` for all fields of ``kinds``, at any depth."""
    pending, seen = list(kinds), set()
    while pending:
        kind = pending.pop()
        pending.extend(typing.get_args(kind))
        if not isinstance(kind, type) or kind in seen:
            continue
        seen.add(kind)
        names: Iterable[str] = ()
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind) if field.init]
        elif issubclass(kind, msgspec.Struct):
            names = kind.__struct_fields__
        hints = typing.get_type_hints(kind) if names else {}
        for name in names:
            pending.append(hints[name])
            yield f"{kind.__name__}.{name}"


FIELDS: Final = frozenset(_fields_of([_Core, StoredTopic, ProducerState, FinishedBatch]))


def _encode_hook(value: Any) -> Any:
    if isinstance(value, FinishedBatches):
        return value.pack()
    if isinstance(value, OffsetRanges):
        return list(value)
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"a state cannot contain a {type(value).__name__}: add it to controller.snapshots.format")


def _decode_hook(kind: Any, value: Any) -> Any:
    if kind is FinishedBatches:
        return FinishedBatches(value)
    if kind is OffsetRanges:
        return OffsetRanges(msgspec.convert(value, list[OffsetRange]))
    raise NotImplementedError(f"a state cannot contain a {kind}: add it to controller.snapshots.format")


class _FormatField(msgspec.Struct):
    format: int


class _HeaderFormat(msgspec.Struct):
    header: _FormatField


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_FORMATS: msgspec.msgpack.Decoder[_HeaderFormat] = msgspec.msgpack.Decoder(_HeaderFormat)
_FILES: msgspec.msgpack.Decoder[_File] = msgspec.msgpack.Decoder(_File)
_DECODERS: Final[Mapping[Any, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook) for kind in (_Core, StoredTopic, list[ProducerState])
}


def _compress(value: Any) -> bytes:
    return zlib.compress(_ENCODER.encode(value), _COMPRESSION)


def _decompress(data: bytes, kind: Any, where: str) -> Any:
    try:
        return _DECODERS[kind].decode(zlib.decompress(data))
    except (zlib.error, msgspec.DecodeError) as error:
        raise SnapshotError(f"{where} is damaged: {error}") from error
