"""Compare states: all of their fields as plain values, and the state of a snapshot."""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

from controller.snapshots.format import decode_steps
from headgate.model.positions import OffsetRanges
from shard.state.producers import Producers
from shard.state.shard_state import ShardState
from shard.steps import complete

PLAIN = frozenset({bool, bytes, float, int, str, type(None)})


@cache
def _fields_of(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """Return what gets the fields of a dataclass or struct; None for another type."""
    if dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
    elif issubclass(kind, msgspec.Struct):
        names = list(kind.__struct_fields__)
    else:
        return None
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def plain(value: Any) -> Any:
    """Return ``value`` with all of its fields, private and derived ones too, as plain values that can be compared."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return sorted([(key, item if type(item) in PLAIN else plain(item)) for key, item in value.items()])
    if kind is list:
        return [item if type(item) in PLAIN else plain(item) for item in value]
    if (fields := _fields_of(kind)) is not None:
        return (kind.__name__, [item if type(item) in PLAIN else plain(item) for item in fields(value)])
    if isinstance(value, Producers):
        return everything(value)
    if isinstance(value, Mapping):
        pairs = [(key, plain(item)) for key, item in value.items()]
        more = [(name, plain(item)) for name, item in sorted(getattr(value, "__dict__", {}).items())]
        return (pairs if isinstance(value, OrderedDict) else sorted(pairs)) + more
    if isinstance(value, deque):
        return ("deque", value.maxlen, [plain(item) for item in value])
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return type(value)([item if type(item) in PLAIN else plain(item) for item in value])
    return list(value) if isinstance(value, OffsetRanges) else value


def decode_snapshot(data: bytes, *, shard: int, chunk: int) -> ShardState:
    """Return the state in ``data``; raises SnapshotError."""
    return complete(decode_steps(data, shard=shard, chunk=chunk))


def everything(state: ShardState | Producers) -> dict[str, Any]:
    return {name: plain(value) for name, value in vars(state).items()}
