"""The part of a topic that a subscription reads. Only the shard's state changes topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headgate.model.external_topic import ExternalTopic
from headgate.model.layout import Layout


class TailView(Protocol):
    """The end of a segment's records."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""

    @property
    def size_bytes(self) -> int:
        """Total bytes of all records."""

    def chunk_of(self, offset: int) -> int:
        """Return a chunk that is not after the one with ``offset``."""


class TopicView(Protocol):
    """One topic. Each split, merge or prune replaces ``layout`` with a new value."""

    @property
    def topic_id(self) -> int:
        """Never reused on one shard."""

    @property
    def name(self) -> str:
        """The topic's name."""

    @property
    def layout(self) -> Layout:
        """All current segments."""

    @property
    def tails(self) -> Mapping[int, TailView]:
        """Segment → its end, for each segment of the layout."""

    @property
    def external(self) -> ExternalTopic | None:
        """The topic's source, if headgate does not store its records."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic, to be read while segments are added or pruned. Its tails grow."""

    topic_id: int
    name: str
    layout: Layout
    tails: Mapping[int, TailView]
    external: ExternalTopic | None

    @classmethod
    def of(cls, topic: TopicView) -> TopicSnapshot:
        return cls(topic.topic_id, topic.name, topic.layout, dict(topic.tails), topic.external)
