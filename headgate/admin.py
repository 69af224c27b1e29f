"""Commands to a cluster: topics, splits, merges, subscriptions.

Each command goes to the leader of its topic's shard and is asked again until it is answered. One that changes something
carries a token, the same through all its tries, so that a lost reply does not let it be carried out twice.
"""

from __future__ import annotations

from typing import Self, TypeVar

from headgate import messages as m
from headgate.client import DEFAULT_TIMEOUT_SECONDS, Client, MakeRequest
from headgate.config import ClientConfig
from headgate.errors import HeadgateError
from headgate.hashing import shard_of

ReplyT = TypeVar("ReplyT", bound=m.Reply)


class Admin:
    """Manages topics and subscriptions. Use it as an async context manager.

    Every method raises NoLeaderError if nobody answers in time, RefusedError (its text says why, and the valid choices)
    if the leader refuses, and InvalidNameError for a name that cannot be used.
    """

    def __init__(self, config: ClientConfig | Client, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """``timeout_seconds``: for each command, a change of leader in between included."""
        self._client = config if isinstance(config, Client) else Client.from_config(config, "admin")
        self._owns_client = not self._client.entered
        self._timeout_seconds = timeout_seconds
        self._shards = 0

    async def __aenter__(self) -> Self:
        """Connect; raises NoLeaderError if the cluster is not there."""
        if self._owns_client:
            await self._client.__aenter__()
        try:
            self._shards = await self._client.shards(self._timeout_seconds)
        except BaseException:
            if self._owns_client:
                await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        if self._owns_client:
            await self._client.__aexit__(None, None, None)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, segments: int = 1) -> m.TopicDescription:
        """Create ``topic`` with that many equal segments."""
        shard, client_id, token = self._shard(topic), self._client.client_id, self._client.new_token()

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.CreateTopic(
                request_id=request_id,
                client_id=client_id,
                leader_epoch=leader_epoch,
                topic=topic,
                segments=segments,
                token=token,
            )

        return (await self._ask(shard, make, m.TopicAnswer)).topic

    async def list_topics(self) -> list[m.TopicDescription]:
        """Return all topics of all shards, by name."""
        client_id = self._client.client_id

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.ListTopics(request_id=request_id, client_id=client_id, leader_epoch=leader_epoch)

        found: list[m.TopicDescription] = []
        for shard in range(self._all_shards()):
            found += (await self._ask(shard, make, m.TopicList)).topics
        return sorted(found, key=lambda description: description.topic)

    async def describe_topic(self, topic: str) -> m.TopicDescription:
        """Return the layout of ``topic``."""
        shard, client_id = self._shard(topic), self._client.client_id

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.DescribeTopic(request_id=request_id, client_id=client_id, leader_epoch=leader_epoch, topic=topic)

        return (await self._ask(shard, make, m.TopicAnswer)).topic

    async def leader_of(self, topic: str) -> str:
        """Return the name of the daemon that leads the topic's shard, as far as is known; waits for one."""
        await self.describe_topic(topic)
        announcement = self._client.leader(self._shard(topic))
        assert announcement is not None, "a leader has just answered"
        return announcement.instance

    async def split(self, topic: str, segment: int) -> m.TopicDescription:
        """Split an active segment at the middle of its range; returns the new layout."""
        shard, client_id, token = self._shard(topic), self._client.client_id, self._client.new_token()

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.SplitSegment(
                request_id=request_id,
                client_id=client_id,
                leader_epoch=leader_epoch,
                topic=topic,
                segment=segment,
                token=token,
            )

        return (await self._ask(shard, make, m.TopicAnswer)).topic

    async def merge(self, topic: str, first: int, second: int) -> m.TopicDescription:
        """Merge two active neighbours; returns the new layout."""
        shard, client_id, token = self._shard(topic), self._client.client_id, self._client.new_token()

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.MergeSegments(
                request_id=request_id,
                client_id=client_id,
                leader_epoch=leader_epoch,
                topic=topic,
                segments=(first, second),
                token=token,
            )

        return (await self._ask(shard, make, m.TopicAnswer)).topic

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete ``topic``; one that consumers use only with ``force``."""
        shard, client_id, token = self._shard(topic), self._client.client_id, self._client.new_token()

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.DeleteTopic(
                request_id=request_id,
                client_id=client_id,
                leader_epoch=leader_epoch,
                topic=topic,
                force=force,
                token=token,
            )

        await self._ask(shard, make, m.Done)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def list_subscriptions(self, topic: str | None = None) -> list[m.SubscriptionDescription]:
        """Return the subscriptions of ``topic``, or of all topics, by topic and name."""
        client_id = self._client.client_id

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.ListSubscriptions(
                request_id=request_id, client_id=client_id, leader_epoch=leader_epoch, topic=topic
            )

        shards = range(self._all_shards()) if topic is None else [self._shard(topic)]
        found: list[m.SubscriptionDescription] = []
        for shard in shards:
            found += (await self._ask(shard, make, m.SubscriptionList)).subscriptions
        return sorted(found, key=lambda description: (description.topic, description.subscription))

    async def describe_subscription(self, topic: str, subscription: str) -> m.SubscriptionDescription:
        """Return who reads what, and what is blocked by which ancestors."""
        m.require_name("subscription", subscription)
        shard, client_id = self._shard(topic), self._client.client_id

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.DescribeSubscription(
                request_id=request_id,
                client_id=client_id,
                leader_epoch=leader_epoch,
                topic=topic,
                subscription=subscription,
            )

        return (await self._ask(shard, make, m.SubscriptionAnswer)).subscription

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription; one that consumers use only with ``force``."""
        m.require_name("subscription", subscription)
        shard, client_id, token = self._shard(topic), self._client.client_id, self._client.new_token()

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return m.DeleteSubscription(
                request_id=request_id,
                client_id=client_id,
                leader_epoch=leader_epoch,
                topic=topic,
                subscription=subscription,
                force=force,
                token=token,
            )

        await self._ask(shard, make, m.Done)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _shard(self, topic: str) -> int:
        m.require_name("topic", topic)
        return shard_of(topic, self._all_shards())

    def _all_shards(self) -> int:
        if not self._shards:
            raise HeadgateError("this Admin is not open; use it as an async context manager")
        return self._shards

    async def _ask(self, shard: int, make: MakeRequest, kind: type[ReplyT]) -> ReplyT:
        reply = await self._client.request(shard, make, self._timeout_seconds)
        if not isinstance(reply, kind):
            raise HeadgateError(
                f"the leader of shard {shard} answered {type(reply).__name__} instead of {kind.__name__}",
            )
        return reply
