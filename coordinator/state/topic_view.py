"""What a subscription needs to know of its topic.

The shard's state owns topics and changes them; a coordinator only looks. Its topic satisfies `TopicView` as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.model.external_topic import ExternalTopic
from headgate.model.layout import Layout


class TailView(Protocol):
    """Where a segment's records end."""

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all records so far."""

    def chunk_of(self, offset: int) -> int:
        """Return a chunk at or before the one that holds ``offset``."""


class TopicView(Protocol):
    """One topic; ``layout`` is another value after each split, merge or prune."""

    @property
    def topic_id(self) -> int:
        """Never used twice on one shard."""

    @property
    def name(self) -> str:
        """The name that people gave it."""

    @property
    def layout(self) -> Layout:
        """All segments as of now."""

    @property
    def tails(self) -> Mapping[int, TailView]:
        """Segment → its end, for every segment of the layout."""

    @property
    def external(self) -> ExternalTopic | None:
        """Its source, if headgate does not store its records."""
