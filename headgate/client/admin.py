"""Commands to a cluster: topics, splits, merges, subscriptions.

Each command goes to the leader of its topic's shard and is asked again until it is answered. One that changes something
carries a token, the same through all its tries, so that a lost reply does not let it be carried out twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

import msgspec

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.source_listing import ExternalLayout
from headgate.config import ClientConfig
from headgate.errors import ConfigError, HeadgateError
from headgate.ledger.ledger import Ledger
from headgate.model.entries import Order
from headgate.model.hashing import shard_of
from headgate.protocol import messages as m
from headgate.reading.time_lookup import positions_at
from headgate.storage.object_store import Store, open_store

ReplyT = TypeVar("ReplyT", bound=m.Reply)


class Admin:
    """Manages topics and subscriptions. Use it as an async context manager.

    Every method raises NoLeaderError if nobody answers in time, RequestRejectedError (its text says why, and the valid
    choices) if the leader refuses, and InvalidNameError for a name that cannot be used.
    """

    def __init__(self, config: ClientConfig | Client, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """``timeout_seconds``: for each command, a change of leader in between included."""
        self._client = config if isinstance(config, Client) else Client.from_config(config, "admin")
        self._owns_client = not self._client.entered
        self._ledger_url = None if isinstance(config, Client) else config.ledger_url
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

    async def ledger_url(self) -> str:
        """Return where the cluster keeps its ledger."""
        return (await self._client.description(self._timeout_seconds)).ledger_url

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, segments: int = 1) -> m.TopicDescription:
        """Create ``topic`` with that many equal segments."""
        shard, token = self._shard(topic), self._client.new_token()
        request = m.CreateTopic(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            segments=segments,
            token=token,
        )

        return (await self._request(shard, request, m.TopicReply)).topic

    async def import_topic(
        self,
        topic: str,
        layout: ExternalLayout,
        *,
        complete: bool = True,
        dry_run: bool = False,
    ) -> m.TopicImportReply:
        """Create the external ``topic``, or bring it up to what its source has become; returns what that changes.

        Args:
            topic: its name here.
            layout: the source's segments, see headgate.client.source_listing.
            complete: all that the source knows is listed; False: only what changed, the rest stays as it is.
            dry_run: only say what would change.

        """
        shard, token = self._shard(topic), self._client.new_token()
        request = m.ImportTopic(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            token=token,
            segments=list(layout.segments),
            positions=layout.positions,
            hash_bits=layout.hash_bits,
            source=layout.source,
            complete=complete,
            missing_parents=layout.missing_parents,
            dry_run=dry_run,
        )

        return await self._request(shard, request, m.TopicImportReply)

    async def list_topics(self) -> list[m.TopicDescription]:
        """Return all topics of all shards, by name."""
        request = m.ListTopics(request_id=0, client_id=self._client.client_id)

        found: list[m.TopicDescription] = []
        for shard in range(self._all_shards()):
            found += (await self._request(shard, request, m.TopicList)).topics
        return sorted(found, key=lambda description: description.topic)

    async def describe_topic(self, topic: str) -> m.TopicDescription:
        """Return the layout of ``topic``."""
        shard = self._shard(topic)
        request = m.DescribeTopic(request_id=0, client_id=self._client.client_id, topic=topic)

        return (await self._request(shard, request, m.TopicReply)).topic

    async def leader_of(self, topic: str) -> str:
        """Return the name of the daemon that leads the topic's shard, as far as is known; waits for one."""
        await self.describe_topic(topic)
        announcement = self._client.leader(self._shard(topic))
        assert announcement is not None, "a leader has just answered"
        return announcement.instance

    async def split(self, topic: str, segment: int) -> m.TopicDescription:
        """Split an active segment at the middle of its range; returns the new layout."""
        shard, token = self._shard(topic), self._client.new_token()
        request = m.SplitSegment(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            segment=segment,
            token=token,
        )

        return (await self._request(shard, request, m.TopicReply)).topic

    async def merge(self, topic: str, first: int, second: int) -> m.TopicDescription:
        """Merge two active neighbours; returns the new layout."""
        shard, token = self._shard(topic), self._client.new_token()
        request = m.MergeSegments(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            segments=(first, second),
            token=token,
        )

        return (await self._request(shard, request, m.TopicReply)).topic

    async def set_topic_policy(
        self,
        topic: str,
        *,
        auto_split: bool | None = None,
        auto_merge: bool | None = None,
        min_segments: int | None = None,
        max_segments: int | None = None,
        retention_ms: int | None = None,
        reset: Sequence[m.PolicyField] = (),
    ) -> m.TopicDescription:
        """Change what ``topic`` wants otherwise than the cluster's settings; returns the topic.

        None leaves a field as it is; ``reset`` names those that go back to the cluster's settings. ``retention_ms``:
        how long a sealed segment that everybody has drained is kept; -1: for ever.
        """
        shard, token = self._shard(topic), self._client.new_token()
        request = m.SetTopicPolicy(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            token=token,
            auto_split=auto_split,
            auto_merge=auto_merge,
            min_segments=min_segments,
            max_segments=max_segments,
            retention_ms=retention_ms,
            reset=list(reset),
        )

        return (await self._request(shard, request, m.TopicReply)).topic

    async def prune_topic(self, topic: str, *, dry_run: bool = False) -> m.Pruned:
        """Prune now what every subscription of ``topic`` has drained; returns what goes, and why the rest stays."""
        shard, token = self._shard(topic), self._client.new_token()
        request = m.PruneTopic(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            token=token,
            dry_run=dry_run,
        )

        return await self._request(shard, request, m.Pruned)

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete ``topic``; one that consumers use only with ``force``."""
        shard, token = self._shard(topic), self._client.new_token()
        request = m.DeleteTopic(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            force=force,
            token=token,
        )

        await self._request(shard, request, m.Done)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def list_subscriptions(self, topic: str | None = None) -> list[m.SubscriptionDescription]:
        """Return the subscriptions of ``topic``, or of all topics, by topic and name."""
        request = m.ListSubscriptions(request_id=0, client_id=self._client.client_id, topic=topic)

        shards = range(self._all_shards()) if topic is None else [self._shard(topic)]
        found: list[m.SubscriptionDescription] = []
        for shard in shards:
            found += (await self._request(shard, request, m.SubscriptionList)).subscriptions
        return sorted(found, key=lambda description: (description.topic, description.subscription))

    async def backlog(self, topic: str | None = None, subscription: str | None = None) -> list[m.SubscriptionBacklog]:
        """Return what is not acknowledged: of one subscription, of all of ``topic``, or of all topics, by name."""
        if subscription is not None:
            m.require_name("subscription", subscription)
        request = m.DescribeBacklog(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
        )

        shards = range(self._all_shards()) if topic is None else [self._shard(topic)]
        answers = await asyncio.gather(*(self._request(shard, request, m.BacklogReply) for shard in shards))
        found = [backlog for answer in answers for backlog in answer.backlogs]
        return sorted(found, key=lambda backlog: (backlog.topic, backlog.subscription))

    async def describe_subscription(self, topic: str, subscription: str) -> m.SubscriptionDescription:
        """Return who reads what, and what is blocked by which ancestors."""
        m.require_name("subscription", subscription)
        shard = self._shard(topic)
        request = m.DescribeSubscription(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
        )

        return (await self._request(shard, request, m.SubscriptionReply)).subscription

    async def explain(
        self, topic: str, subscription: str, *, segment: int | None = None, consumer: str | None = None
    ) -> m.SubscriptionExplanation:
        """Return why segments are, or are not, with somebody: one segment, one consumer, or everything."""
        m.require_name("subscription", subscription)
        if consumer is not None:
            m.require_name("consumer", consumer)
        shard = self._shard(topic)
        request = m.ExplainSubscription(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
            segment=segment,
            consumer=consumer,
        )

        return (await self._request(shard, request, m.ExplanationReply)).explanation

    async def plan(
        self,
        topic: str,
        subscription: str,
        *,
        splits: Sequence[int] = (),
        merges: Sequence[tuple[int, int]] = (),
        add_consumers: Sequence[str] = (),
        remove_consumers: Sequence[str] = (),
    ) -> m.ChangePlan:
        """Return what these changes would move in one subscription; nothing is done."""
        m.require_name("subscription", subscription)
        for name in (*add_consumers, *remove_consumers):
            m.require_name("consumer", name)
        shard = self._shard(topic)
        request = m.PlanChanges(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
            splits=list(splits),
            merges=list(merges),
            add_consumers=list(add_consumers),
            remove_consumers=list(remove_consumers),
        )

        return (await self._request(shard, request, m.PlanReply)).plan

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription; one that consumers use only with ``force``."""
        m.require_name("subscription", subscription)
        shard, token = self._shard(topic), self._client.new_token()
        request = m.DeleteSubscription(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
            force=force,
            token=token,
        )

        await self._request(shard, request, m.Done)

    async def seek(
        self,
        topic: str,
        subscription: str,
        *,
        to: m.Start | None = None,
        timestamp_ms: int | None = None,
        positions: Mapping[int, int] | None = None,
        dry_run: bool = False,
    ) -> m.SeekReply:
        """Move a subscription, while its consumers run; everything from its new positions on is delivered again.

        Give exactly one of: ``to`` "earliest" or "latest"; ``timestamp_ms``, for the first record of each segment that
        was stored at that time or later (the leader's clock; what producers wrote into a record does not count); or
        ``positions``, segment → offset. ``dry_run``: only say what would move.

        Raises, beside the errors of every method: ConfigError if not exactly one is given, or the timestamp is still to
        come; StoreError, ChunkError if the ledger cannot be read to find a timestamp.
        """
        m.require_name("subscription", subscription)
        if sum(given is not None for given in (to, timestamp_ms, positions)) != 1:
            raise ConfigError("seek: give exactly one of to, timestamp_ms and positions")
        shard, token = self._shard(topic), self._client.new_token()
        if timestamp_ms is not None:
            if timestamp_ms > self._client.now_ms():
                raise ConfigError(f"seek: timestamp {timestamp_ms} is still to come; to='latest' is the present end")
            described = await self.describe_topic(topic)
            if described.external is not None:
                raise ConfigError(
                    f"seek: topic {topic!r} is external, when its records came is known at its source alone"
                )
            positions = await positions_at(Ledger(self._store(), shard), described, timestamp_ms)
        pairs = sorted((positions or {}).items())
        request = m.SeekSubscription(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
            token=token,
            to=to,
            positions=pairs,
            dry_run=dry_run,
        )

        return await self._request(shard, request, m.SeekReply)

    async def set_order(self, topic: str, subscription: str, order: Order) -> m.SubscriptionDescription:
        """Let the children of a split wait for their ancestors ("strict") or not ("none"), from now on."""
        m.require_name("subscription", subscription)
        shard, token = self._shard(topic), self._client.new_token()
        request = m.SetSubscriptionOrder(
            request_id=0,
            client_id=self._client.client_id,
            topic=topic,
            subscription=subscription,
            order=order,
            token=token,
        )

        return (await self._request(shard, request, m.SubscriptionReply)).subscription

    # --- how ----------------------------------------------------------------------------------------------------------

    def _shard(self, topic: str) -> int:
        m.require_name("topic", topic)
        return shard_of(topic, self._all_shards())

    def _store(self) -> Store:
        """Return the ledger's store; only a seek to a timestamp needs it."""
        return self._client.store if self._ledger_url is None else open_store(self._ledger_url)

    def _all_shards(self) -> int:
        if not self._shards:
            raise HeadgateError("this Admin is not open; use it as an async context manager")
        return self._shards

    async def _request(self, shard: int, request: m.Request, kind: type[ReplyT]) -> ReplyT:
        """Return the answer to ``request``, which gets an id and an epoch of its own with each attempt."""

        def make(request_id: int, leader_epoch: int | None) -> m.Request:
            return msgspec.structs.replace(request, request_id=request_id, leader_epoch=leader_epoch)

        reply = await self._client.request(shard, make, self._timeout_seconds)
        if not isinstance(reply, kind):
            raise HeadgateError(
                f"the leader of shard {shard} answered {type(reply).__name__} instead of {kind.__name__}",
            )
        return reply
