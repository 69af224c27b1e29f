"""Everything that a state holds, as something that can be compared."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import msgspec

from controller.state.shard_state import ShardState
from headgate.model.offset_ranges import OffsetRanges


def plain(value: Any) -> Any:
    """Return everything that ``value`` holds, private and derived things too, as something that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)})
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, {name: plain(getattr(value, name)) for name in value.__struct_fields__})
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


def everything(state: ShardState) -> dict[str, Any]:
    return {name: plain(value) for name, value in vars(state).items()}
