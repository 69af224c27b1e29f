"""Compare states: all of their fields as plain values, and the state of a snapshot."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from controller.snapshots.format import decode_steps
from controller.state.producers import Producers
from controller.state.shard_state import ShardState
from coordinator.reporting.steps import complete
from headgate.model.offset_ranges import OffsetRanges

PLAIN = frozenset({bool, bytes, float, int, str, type(None)})


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass or struct; None for another type."""
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    return kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else None


def plain(value: Any) -> Any:
    """Return ``value`` with all of its fields, private and derived ones too, as plain values that can be compared."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return sorted([(key, plain(item)) for key, item in value.items()])
    if kind is list:
        return [item if type(item) in PLAIN else plain(item) for item in value]
    if (names := _field_names(kind)) is not None:
        return (kind.__name__, [plain(getattr(value, name)) for name in names])
    if isinstance(value, Producers):
        return everything(value)
    if isinstance(value, Mapping):
        pairs = [(key, plain(item)) for key, item in value.items()]
        return pairs if isinstance(value, OrderedDict) else sorted(pairs)
    if isinstance(value, deque):
        return ("deque", value.maxlen, [plain(item) for item in value])
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return list(value) if isinstance(value, OffsetRanges) else value


def decode_snapshot(data: bytes, *, shard: int, chunk: int) -> ShardState:
    """Return the state in ``data``; raises SnapshotError."""
    return complete(decode_steps(data, shard=shard, chunk=chunk))


def everything(state: ShardState | Producers) -> dict[str, Any]:
    return {name: plain(value) for name, value in vars(state).items()}
