"""How a snapshot stores a topic: the state of each subscription is one flat object, whatever its classes are. Pure.

The fields of the state's own dataclasses are stored under their names, so a new one is stored as well.
"""

import dataclasses
import typing
from copy import copy
from typing import Any, Final

from headgate.model.hashing import SegmentSlice
from shard.state.consumers import Consumers, Holding, Holdings, RegisteredConsumer, RemovedConsumer
from shard.state.progress import Progress
from shard.state.subscription import Subscription
from shard.state.topic import Topic

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
