"""One example of each event type, made from the types of its fields."""

from typing import Any, Literal, get_args, get_origin

import msgspec

from metrics.events import EVENT_TYPES, Event
from metrics.status import ShardStatus

_VALUES: dict[Any, Any] = {
    bool: True,
    int: 1,
    float: 1.0,
    str: "handover",
    tuple[ShardStatus, ...]: (ShardStatus(shard=1, role="leading", leader_epoch=1, head_chunk=1),),
}


def example_events(**fields: Any) -> list[Event]:
    """Return one event of each type, with ``fields`` where the type has them."""
    found = []
    for each in sorted(EVENT_TYPES, key=lambda each: each.__name__):
        examples = {field.name: _example_value(field.type) for field in msgspec.structs.fields(each)}
        found.append(each(**{name: fields.get(name, example) for name, example in examples.items()}))
    return found


def _example_value(field_type: Any) -> Any:
    if get_origin(field_type) is Literal:
        return get_args(field_type)[0]
    return _VALUES.get(field_type, ()) if get_origin(field_type) is tuple else _VALUES[field_type]
