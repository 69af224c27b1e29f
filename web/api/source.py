"""Where the HTTP API gets its documents from. The daemon implements it (controller.cluster.status)."""

from typing import Protocol

from headgate.errors import HeadgateError
from web.api.documents import SubscriptionDocument, TopicDocument
from web.api.overview import DaemonPart, Overview


class UnknownNameError(HeadgateError):
    """There is no such topic or subscription."""


class NotAnsweredError(HeadgateError):
    """The daemon that leads the shard did not answer, or no daemon leads it."""


class StatusSource(Protocol):
    """Answers for the whole cluster, or with ``own`` for what this daemon leads."""

    async def overview(self) -> Overview:
        """Return what all daemons know; may be a few seconds old."""

    async def part(self) -> DaemonPart:
        """Return what this daemon knows."""

    async def topic(self, topic: str, *, own: bool) -> TopicDocument:
        """Return one topic. Raises UnknownNameError or NotAnsweredError."""

    async def subscription(self, topic: str, subscription: str, *, own: bool) -> SubscriptionDocument:
        """Return one subscription. Raises UnknownNameError or NotAnsweredError."""
