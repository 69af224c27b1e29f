"""How a snapshot stores a topic: the state of each subscription is one flat object, whatever its classes are. Pure.

The fields of the state's own dataclasses are stored under their names, so a new one is stored as well.
"""

import dataclasses
import typing
from typing import Any, Final

import msgspec

from headgate.model.bucket_ranges import SegmentSlice
from shard.state.consumers import Consumers, RegisteredConsumer, RemovedConsumer
from shard.state.holdings import Holding, Holdings
from shard.state.progress import Progress
from shard.state.subscription import Subscription
from shard.state.topic import Topic

_Field = tuple[str, Any] | tuple[str, Any, Any]


def _fields(kind: Any, *, without: tuple[str, ...]) -> list[_Field]:
    """Return the fields of a dataclass, each with its type and default."""
    hints, found = typing.get_type_hints(kind), list[_Field]()
    for each in dataclasses.fields(kind):
        if each.name in without:
            continue
        if each.default is not dataclasses.MISSING:
            found.append((each.name, hints[each.name], each.default))
        elif each.default_factory is not dataclasses.MISSING:
            found.append((each.name, hints[each.name], msgspec.field(default_factory=each.default_factory)))
        else:
            found.append((each.name, hints[each.name]))
    return found


_PARTS: Final = ("consumers", "holdings", "progress")
_OWN: Final = _fields(Subscription, without=_PARTS)
_OF_PROGRESS: Final = _fields(Progress, without=())
_OF_TOPIC: Final = _fields(Topic, without=("subscriptions",))
StoredSubscription: Final[Any] = msgspec.defstruct(
    "Subscription",
    [
        *_OWN,
        *_OF_PROGRESS,
        ("consumers", dict[str, RegisteredConsumer], msgspec.field(default_factory=dict)),
        ("removed_consumers", list[RemovedConsumer], msgspec.field(default_factory=list)),
        ("unused_since_ms", int | None, None),
        ("holdings", dict[SegmentSlice, Holding], msgspec.field(default_factory=dict)),
        ("next_generation", int, 1),
    ],
)
StoredTopic: Final[Any] = msgspec.defstruct(
    "Topic",
    [*_OF_TOPIC, ("subscriptions", dict[str, StoredSubscription], msgspec.field(default_factory=dict))],
)


def _values(source: Any, fields: list[_Field]) -> dict[str, Any]:
    return {name: getattr(source, name) for name, *_ in fields}


def stored(topic: Topic) -> Any:
    """Return ``topic`` as it is stored: a `StoredTopic`."""
    subscriptions = {
        name: StoredSubscription(
            **_values(each, _OWN),
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
            **_values(each, _OWN),
            consumers=Consumers(each.consumers.values(), each.removed_consumers, each.unused_since_ms),
            holdings=Holdings(each.holdings, each.next_generation),
            progress=Progress(**_values(each, _OF_PROGRESS)),
        )
        for name, each in found.subscriptions.items()
    }
    return Topic(**_values(found, _OF_TOPIC), subscriptions=subscriptions)
