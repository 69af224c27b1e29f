"""Commands to a cluster: topics, splits, merges, producers, subscriptions.

A command is repeated until the leader of its topic's shard replies. A change carries the same token
in every attempt, so it is made once, and a deadline, so it is not made after this has failed.
"""

import contextlib
import copy
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, get_args

import msgspec
from msgspec.structs import asdict, replace

from headgate.client.cluster_query import describe_cluster, explained
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client, ClientLease
from headgate.client.request_attempts import body_of
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, NoLeaderError, RequestRejectedError
from headgate.ledger.ledger import Ledger
from headgate.model.entries import NO_POLICY, Order, SubscriptionType, TopicPolicy
from headgate.model.identifiers import Offset, SegmentId, keeper_of
from headgate.model.layout import MAX_SHARDS
from headgate.process.background import gathered
from headgate.protocol import replies, request_fields, requests
from headgate.reading.topic_files import positions_at
from headgate.settings.arguments import require_choice, require_integer, require_seconds, require_time_ms, require_type
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import Store, open_store
from headgate.views.cluster import ClusterInfo
from headgate.views.explanations import Explanation, Plan
from headgate.views.subscriptions import BacklogInfo, ParkedKeyInfo, SeekResult, SubscriptionInfo
from headgate.views.topics import ProducerInfo, PruneResult, TopicImportResult, TopicInfo

T = TypeVar("T")
ReplyT = TypeVar("ReplyT", bound=replies.ReplyBody)
RequestT = TypeVar("RequestT", bound=request_fields.TopicRequest)
PageT = TypeVar("PageT", bound=replies.PageReply)

EXPLANATION_SECONDS: Final = 5.0
"""How long a refusal may wait for the near names."""
_NAMES: Final = ("topic", "subscription", "consumer", "producer", "daemon")
"""Fields of requests that are names of what they say."""


class TopicSetting(msgspec.Struct, frozen=True):
    """One value of a `TopicPolicy` that applies to a topic."""

    name: str
    value: bool | int
    source: Literal["topic", "setting", "default"]
    """The topic's own value, a setting of the cluster, or headgate's default."""


class Seen(NamedTuple):
    """Which topic, subscription and program of a consumer had these names when they were shown."""

    topic: str
    topic_id: int
    subscription: str | None = None
    subscription_id: int | None = None
    consumer: str | None = None
    consumer_incarnation: int | None = None
    history: Sequence[tuple[int, int]] = ()
    """Of a consumer: what it knows of the ledger (headgate.model.positions). Positions are refused in another one."""
    parking: int | None = None
    """Of a parked key. One that is resumed and parked again has another one."""

    def texts(self) -> list[str]:
        """Return a text for the topic, for the subscription, and for the program or key, as far as there is one."""
        last = self.consumer_incarnation if self.parking is None else self.parking
        numbers = (self.topic_id, self.subscription_id, None if last is None else f"{self.subscription_id}/{last}")
        return [str(each) for each in numbers if each is not None]


_BOUND: Final = request_fields.TopicCommand | request_fields.SubscriptionCommand | requests.CreateSubscription


class Admin:
    """Manages topics, named producers and subscriptions. Use it as an async context manager.

    Every method raises NoLeaderError if no leader answers in time, RequestRejectedError if the
    leader refuses (the text gives the reason and the valid choices), and InvalidNameError for a
    name that cannot be used. A method that changes something was not executed, and will not be, if
    it raises NoLeaderError. It may have been executed if it raises CommandUnknownError.
    """

    _seen: Seen | None = None

    def __init__(self, config: ClientConfig | Client, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """``timeout_seconds`` bounds each command, including a change of leader during it.

        Raises ConfigError: an argument is invalid.
        """
        self._lease = ClientLease(config, "admin", require_seconds("timeout_seconds", timeout_seconds))
        self.client = self._lease.client
        """The connection. :meta private:"""
        self._ledger_url = None if isinstance(config, Client) else config.ledger_url
        self._timeout_seconds = self._lease.timeout_seconds

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NoLeaderError: the cluster cannot be reached in time.
            TransportError: the broker and this program refuse each other: a password, a certificate or a name is wrong.
        """
        await self._lease.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lease.close()

    async def ledger_url(self) -> str:
        """Return the URL of the cluster's ledger."""
        return (await self.client.cluster_watch.description(self._timeout_seconds)).ledger_url

    async def describe_cluster(self, *, blocked: bool = False) -> ClusterInfo:
        """Return daemons, leaders, totals and subscriptions of the whole cluster, as one daemon sees it.

        ``blocked``: only the subscriptions that have blocked segments. Any leader answers, so this works while other
        shards have none. A daemon that the answering one cannot reach is ``unreachable``.
        """
        return await describe_cluster(self.client, self._all_shards(), self._timeout_seconds, blocked=blocked)

    async def transfer_shard(self, shard: int, daemon: str) -> None:
        """Make ``daemon`` the leader of ``shard``, and return once it leads.

        It reads the ledger before the present leader stops. The shard stays with it while it lives, until it is in
        maintenance. Raises RequestRejectedError if that daemon cannot take the shard, and ConfigError if there is no
        such shard.
        """
        if not 0 <= require_integer("transfer_shard: shard", shard) < self._all_shards():
            raise ConfigError(f"there is no shard {shard}: this cluster has shards 0 to {self._all_shards() - 1}")
        await self._request(shard, requests.TransferShard(daemon=daemon, token=self._token()), replies.Done)

    async def set_maintenance(self, daemon: str, *, on: bool) -> None:
        """Begin or end the maintenance of ``daemon``. A daemon in maintenance leads nothing if another one can.

        Returns once it is stored. The transfers follow within seconds. Raises RequestRejectedError if no such daemon
        is live.
        """
        await self._request_any(requests.SetMaintenance(daemon=daemon, on=on, token=self._token()))

    async def _request_any(self, request: requests.AnyRequestBody) -> None:
        """Send a command to the leader of any shard; raises NoLeaderError if there is none."""
        request_fields.require_fields(request)
        led = [each.shard for each in (await self.describe_cluster(blocked=True)).shards if each.daemon is not None]
        if not led:
            raise NoLeaderError("no shard has a leader that could store it; it was not stored")
        await self._request(led[0], request, replies.Done)

    async def raise_feature_level(self, level: int) -> None:
        """Raise the feature level of the cluster to ``level``, which daemons of older versions do not support.

        ``feature_level`` of `describe_cluster` says which level is possible. One that the cluster has already is no
        error. Raises RequestRejectedError, which names the daemons that do not support it.
        """
        await self._request_any(requests.RaiseLevel(level=level, token=self._token()))

    async def set_shards(self, shards: int, *, dry_run: bool = False) -> int:
        """Give the cluster more ``shards``, which cannot be taken back. Topics stay where they are.

        Returns, once it is stored, how many topics are looked for in more than one place then. Daemons follow within
        seconds. Raises ConfigError: the number does not rise, or is above 1024.
        """
        before, wanted = self._all_shards(), require_integer("set_shards: shards", shards)
        if (later := self.client.cluster_watch.shards.grown(wanted)) is None:
            raise ConfigError(f"the cluster has {before} shards, and the number can only rise, to at most {MAX_SHARDS}")
        topics = await self.list_topics()
        if not dry_run:
            await self._request_any(requests.SetShards(shards=shards, before=before, token=self._token()))
        return sum(len(later.candidates(each.topic)) > 1 for each in topics)

    # Topics

    async def create_topic(self, topic: str, segments: int = 1) -> TopicInfo:
        """Create ``topic`` with ``segments`` equal segments."""
        request = requests.CreateTopic(topic=topic, segments=segments, token=self._token())
        return (await self._create(request, replies.TopicReply)).topic

    async def import_topic(
        self, topic: str, layout: ExternalLayout, *, complete: bool = True, dry_run: bool = False
    ) -> TopicImportResult:
        """Create the external ``topic``, or update it from its source; returns what changes.

        Args:
            topic: its name in headgate.
            layout: the segments at the source, see headgate.client.source_listing.
            complete: ``layout`` lists every segment of the source. False: only those that changed; the others stay.
            dry_run: only return what would change.
        """
        require_type("import_topic: layout", layout, ExternalLayout)
        request = requests.ImportTopic(
            topic=topic,
            token=self._token(),
            segments=list(layout.segments),
            positions=layout.positions,
            hash_bits=layout.hash_bits,
            source=layout.source,
            complete=complete,
            missing_parents=layout.missing_parents,
            dry_run=dry_run,
        )
        return (await self._create(request, replies.TopicImportReply)).result

    async def list_topics(self) -> list[TopicInfo]:
        """Return all topics of all shards, by name."""
        pages = await self._list(None, requests.ListTopics(), replies.TopicList)
        return sorted((topic for page in pages for topic in page.topics), key=lambda info: info.topic)

    async def describe_topic(self, topic: str) -> TopicInfo:
        """Return the segments of ``topic``."""
        return (await self._ask(requests.DescribeTopic(topic=topic), replies.TopicReply)).topic

    async def seen(
        self, topic: str, subscription: str | None = None, consumer: str | None = None, *, key: bytes | None = None
    ) -> Seen:
        """Return which topic, subscription, program (0: none) and parked key have these names now, for `bound_to`."""
        if consumer is not None:
            request_fields.require_name("consumer", consumer)
        require_type("seen: key", key or b"", bytes)
        topic_id = (await self.describe_topic(topic)).topic_id
        if subscription is None:
            return Seen(topic, topic_id)
        found = await self.describe_subscription(topic, subscription)
        programs = {each.consumer: each.incarnation for each in found.consumers}
        program = None if consumer is None else programs.get(consumer, 0)
        parked = [] if key is None else await self.parked_keys(topic, subscription, key)
        parking = parked[0].parking if parked else None
        return Seen(topic, topic_id, subscription, found.subscription_id, consumer, program, parking=parking)

    def bound_to(self, seen: Seen | None) -> Self:
        """Return this Admin, while it is connected, for what was ``seen``.

        A command that changes it is refused with RequestRejectedError if its name belongs to another one by then: the
        topic or subscription was deleted and created again, the consumer's program was started again, or the key was
        resumed and parked again. None: no command is.
        """
        bound = copy.copy(self)
        bound._seen = seen  # noqa: SLF001 - of its own class
        return bound

    def _bound(self, request: RequestT) -> RequestT:
        seen, given = self._seen, dict[str, Any]()
        if seen is not None and seen.topic == request.topic and isinstance(request, _BOUND):
            given["topic_id"] = seen.topic_id if request.topic_id is None else request.topic_id
            if isinstance(request, request_fields.SubscriptionCommand) and seen.subscription == request.subscription:
                given["subscription_id"] = seen.subscription_id
                if isinstance(request, requests.SeekSubscription) and request.positions:
                    given["history"] = [*request.history, *seen.history]
                if isinstance(request, requests.EvictConsumer) and seen.consumer == request.consumer:
                    given["consumer_incarnation"] = seen.consumer_incarnation
                if isinstance(request, requests.ResumeKey):
                    given["parking"] = seen.parking
        return replace(request, **given)

    async def pruned_ends(self, topic: str, segments: Iterable[int]) -> dict[int, int]:
        """Return where pruned ``segments`` of ``topic`` ended, as far as the leader remembers them.

        :meta private:
        """
        request = requests.DescribeTopic(topic=topic, pruned=sorted(segments)[-request_fields.MAX_HELD_SEGMENTS :])
        return dict((await self._ask(request, replies.TopicReply)).pruned_ends)

    async def topic_settings(self, topic: str) -> list[TopicSetting]:
        """Return what applies to ``topic`` of all that `set_topic_policy` can override, and where it is from."""
        reply = await self._ask(requests.DescribeTopic(topic=topic), replies.TopicReply)
        own, cluster = asdict(reply.topic.policy), asdict(reply.cluster_policy)
        return [
            TopicSetting(name, cluster[name], "setting" if name in reply.configured else "default")
            if own[name] is None
            else TopicSetting(name, own[name], "topic")
            for name in own
        ]

    async def leader_of(self, topic: str) -> str:
        """Return the name of the daemon that leads the topic's shard; waits until one answers."""
        announcement = self.client.leader((await self.describe_topic(topic)).shard)
        assert announcement is not None, "a leader has just answered"
        return announcement.instance

    async def split(self, topic: str, segment: SegmentId) -> TopicInfo:
        """Split an active segment at the middle of its hash range; returns the new layout."""
        return await self._change_topic(requests.SplitSegment(topic=topic, segment=segment, token=self._token()))

    async def merge(self, topic: str, first: SegmentId, second: SegmentId) -> TopicInfo:
        """Merge two active neighbors; returns the new layout."""
        request = requests.MergeSegments(topic=topic, segments=(first, second), token=self._token())
        return await self._change_topic(request)

    async def set_topic_policy(
        self, topic: str, policy: TopicPolicy = NO_POLICY, *, reset: Sequence[request_fields.PolicyField] = ()
    ) -> TopicInfo:
        """Change which settings of the cluster ``topic`` overrides; returns the topic.

        The fields of ``policy`` that are not None are set, and those in ``reset`` return to the cluster's settings.
        Others stay as they are.
        """
        require_type("reset", reset, Collection)
        for field in reset:
            require_choice("reset", field, get_args(request_fields.PolicyField))
        request = requests.SetTopicPolicy(topic=topic, token=self._token(), policy=policy, reset=list(reset))
        return await self._change_topic(request)

    async def prune_topic(
        self, topic: str, *, dry_run: bool = False, shown: tuple[int, ...] | None = None
    ) -> PruneResult:
        """Prune the segments that every subscription of ``topic`` has drained, despite its retention.

        Returns what was deleted, and why each other sealed segment was not. Raises RequestRejectedError if others can
        be pruned by now than those that a dry run has ``shown``.
        """
        request = requests.PruneTopic(topic=topic, token=self._token(), dry_run=dry_run, shown=shown)
        return (await self._ask(request, replies.PruneReply)).result

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete ``topic``; with ``force`` also while consumers use it."""
        await self._ask(requests.DeleteTopic(topic=topic, force=force, token=self._token()), replies.Done)

    # Producers

    async def list_producers(self) -> list[ProducerInfo]:
        """Return the named producers of all shards, by name and shard."""
        pages = await self._list(None, requests.ListProducers(), replies.ProducerList)
        found = [producer for page in pages for producer in page.producers]
        return sorted(found, key=lambda info: (info.producer, info.shard))

    async def describe_producer(self, name: str) -> list[ProducerInfo]:
        """Return the producer ``name`` on each shard that knows it; at least one does."""
        found = await self._request_known(name, requests.DescribeProducer(producer=name), replies.ProducerReply)
        return [reply.producer for reply in found]

    async def delete_producer(self, name: str, *, seen: list[ProducerInfo] | None = None) -> None:
        """Delete the producer ``name`` with its source positions on all shards, or only what was ``seen`` of it.

        A program that uses it ends with ForgottenError. The name can be opened again, and then
        starts without a position. The shards are independent: repeat a call that failed.
        RequestRejectedError: there is none, or what was ``seen`` on a shard has been deleted, or opened again since.
        """
        require_type("delete_producer: seen", seen or [], list)
        delete = partial(requests.DeleteProducer, producer=name, token=self._token())
        if ids := {each.shard: each.producer_id for each in seen or ()}:
            wanted = (self._request(shard, delete(producer_id=each), replies.Done) for shard, each in ids.items())
            await gathered(*wanted)
        else:
            await self._request_known(name, delete(), replies.Done)

    # Subscriptions

    async def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        """Return the subscriptions of ``topic``, or of all topics, by topic and name."""
        pages = await self._list(topic, requests.ListSubscriptions(topic=topic), replies.SubscriptionList)
        found = [each for page in pages for each in page.subscriptions]
        return sorted(found, key=lambda info: (info.topic, info.subscription))

    async def backlog(self, topic: str | None = None, subscription: str | None = None) -> list[BacklogInfo]:
        """Return the backlogs of one subscription, of all of ``topic``, or of all topics, by name."""
        request = requests.DescribeBacklog(topic=topic, subscription=subscription)
        pages = await self._list(topic, request, replies.BacklogReply)
        found = [each for page in pages for each in page.backlogs]
        return sorted(found, key=lambda info: (info.topic, info.subscription))

    async def describe_subscription(self, topic: str, subscription: str) -> SubscriptionInfo:
        """Return the consumers of a subscription, its positions, and which segments are blocked."""
        return await self._subscription(requests.DescribeSubscription(topic=topic, subscription=subscription))

    async def explain(
        self, topic: str, subscription: str, *, segment: SegmentId | None = None, consumer: str | None = None
    ) -> Explanation:
        """Return why segments are, or are not, assigned: for one segment, one consumer, or all."""
        request = requests.ExplainSubscription(
            topic=topic, subscription=subscription, segment=segment, consumer=consumer
        )
        return (await self._ask(request, replies.ExplanationReply)).explanation

    async def plan(
        self,
        topic: str,
        subscription: str,
        *,
        splits: Sequence[SegmentId] = (),
        merges: Sequence[tuple[SegmentId, SegmentId]] = (),
        add_consumers: Sequence[str] = (),
        remove_consumers: Sequence[str] = (),
    ) -> Plan:
        """Return what these changes would move in one subscription. Changes nothing."""
        names = {"add_consumers": add_consumers, "remove_consumers": remove_consumers}
        changes: dict[str, Any] = {"splits": splits, "merges": merges, **names}
        for what, given in changes.items():
            require_type(f"plan: {what}", given, Collection)
            changes[what] = [request_fields.require_name("consumer", each) if what in names else each for each in given]
        request = requests.PlanChanges(topic=topic, subscription=subscription, **changes)
        return (await self._ask(request, replies.PlanReply)).plan

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: SubscriptionType | str = SubscriptionType.STREAM,  # noqa: A002 - as Consumer names it
        start: request_fields.Start = "latest",
        timestamp_ms: int | None = None,
        if_absent: bool = False,
        topic_id: int | None = None,
    ) -> SubscriptionInfo:
        """Create a subscription before its first consumer; records from its start on are kept for it.

        Args:
            topic: whose records.
            subscription: its name.
            type: how its consumers acknowledge; a name is accepted in any case.
            start: where it begins.
            timestamp_ms: instead of ``start``, the first record of each segment that was stored at that
                time or later; as for `seek`.
            if_absent: one that exists is returned unchanged, if it has this type. Otherwise it is refused.
            topic_id: `TopicInfo.topic_id` of the topic that it is for, as for `seek`.

        Raises:
            ConfigError: the type is unknown, the timestamp is in the future, or the topic is external.
            StoreError, LedgerError: the ledger cannot be read to find a timestamp.
        """
        require_choice("create_subscription: start", start, get_args(request_fields.Start))
        request = requests.CreateSubscription(
            topic=topic,
            subscription=subscription,
            subscription_type=subscription_type(type),
            token=self._token(),
            start=start,
            if_absent=if_absent,
            topic_id=topic_id,
        )
        if timestamp_ms is None:
            return await self._subscription(request)
        reply = await self._ask_at(timestamp_ms, "create_subscription", request, replies.SubscriptionReply)
        return reply.subscription

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription and its positions; with ``force`` also while consumers use it."""
        request = requests.DeleteSubscription(topic=topic, subscription=subscription, force=force, token=self._token())
        await self._ask(request, replies.Done)

    async def evict_consumer(self, topic: str, subscription: str, consumer: str) -> None:
        """Remove a consumer; its segments go to the others.

        The running program gets FencedError and does not join again, so that the eviction lasts. A
        program that is started afterwards may use the name.
        """
        request = requests.EvictConsumer(topic=topic, subscription=subscription, consumer=consumer, token=self._token())
        await self._ask(request, replies.Done)

    async def seek(
        self,
        topic: str,
        subscription: str,
        *,
        to: request_fields.Start | None = None,
        timestamp_ms: int | None = None,
        positions: Mapping[SegmentId, Offset] | None = None,
        point: tuple[int, int] | None = None,
        topic_id: int | None = None,
        dry_run: bool = False,
    ) -> SeekResult:
        """Move a subscription while its consumers run.

        Records from its new positions on are delivered again. Give exactly one of ``to``,
        ``timestamp_ms`` and ``positions``.

        Args:
            topic: whose records.
            subscription: whose positions.
            to: "earliest" or "latest", for every segment.
            timestamp_ms: the first record of each segment that was stored at that time or later, by
                the leader's clock. The timestamps that producers set do not count.
            positions: segment → offset. Other segments keep their positions, unless they descend from one of these.
            point: `SubscriptionInfo.point` of what ``positions`` were taken from: RequestRejectedError if the ledger
                does not have it, because an older one was put back.
            topic_id: `TopicInfo.topic_id` of what ``positions`` are of: RequestRejectedError if the topic was deleted
                and created again.
            dry_run: only return what would move.

        Raises:
            ConfigError: not exactly one target is given, the timestamp is in the future, or the topic is external.
            StoreError, LedgerError: the ledger cannot be read to find a timestamp.
        """
        if sum(given is not None for given in (to, timestamp_ms, positions)) != 1:
            raise ConfigError("seek: give exactly one of to, timestamp_ms and positions")
        require_choice("seek: to", to, (*get_args(request_fields.Start), None))
        require_type("seek: positions", positions or {}, Mapping)
        integer = partial(require_integer, "seek: a segment or offset in positions")
        pairs = sorted((integer(segment), integer(offset)) for segment, offset in (positions or {}).items())
        request = requests.SeekSubscription(
            topic=topic,
            subscription=subscription,
            token=self._token(),
            to=to,
            positions=pairs,
            dry_run=dry_run,
            history=[] if point is None else [point],
            topic_id=None if topic_id is None else require_integer("seek: topic_id", topic_id),
        )
        if timestamp_ms is not None:
            return (await self._ask_at(timestamp_ms, "seek", request, replies.SeekReply)).result
        return (await self._ask(request, replies.SeekReply)).result

    async def set_order(self, topic: str, subscription: str, order: Order) -> SubscriptionInfo:
        """Set whether children wait for their ancestors ("strict") or not ("none")."""
        require_choice("order", order, get_args(Order))
        request = requests.SetSubscriptionOrder(
            topic=topic, subscription=subscription, order=order, token=self._token()
        )
        return await self._subscription(request)

    async def set_delivery_policy(
        self,
        topic: str,
        subscription: str,
        *,
        max_deliveries: int | None = None,
        ack_timeout_seconds: float | None = None,
        dead_letter_topic: str | None = None,
        max_processing_seconds: float | None = None,
        ignored_by_retention: bool | None = None,
    ) -> SubscriptionInfo:
        """Set what happens to records that a subscription has not acknowledged; None leaves a part as it is.

        A consumer that makes no progress for ``max_processing_seconds``, up to a day, loses its segment to another one:
        it acknowledges nothing, although there are records. Two parts are for a QUEUE. After ``max_deliveries`` failed
        deliveries, 1 to 1000, a record goes to ``dead_letter_topic``. A delivery that is neither acknowledged
        nor extended within ``ack_timeout_seconds``, up to a day, has failed. 0 and "" switch them off. Consumers follow
        within a heartbeat. The parked keys of a STREAM go to ``dead_letter_topic``; a subscription of that topic is
        created, for which its retention waits. Retention deletes records that a subscription which is
        ``ignored_by_retention``, of any type, has not read.

        Raises ConfigError: an argument is out of range, or dead letters would return in a circle.
        """
        request = requests.SetDeliveryPolicy(
            topic=topic,
            subscription=subscription,
            token=self._token(),
            max_deliveries=max_deliveries,
            ack_timeout_ms=_milliseconds("ack_timeout_seconds", ack_timeout_seconds),
            dead_letter_topic=dead_letter_topic,
            max_processing_ms=_milliseconds("max_processing_seconds", max_processing_seconds),
            ignored_by_retention=ignored_by_retention,
        )
        if dead_letter_topic:
            if (await self.describe_topic(dead_letter_topic)).external is not None:
                raise ConfigError(f"dead-letter topic {dead_letter_topic!r} is external: no record can be stored in it")
            await check_dead_letter_topic(topic, dead_letter_topic, self.list_subscriptions)
            described = await self.describe_subscription(topic, subscription)
            request = replace(request, subscription_id=described.subscription_id)
            if described.type == SubscriptionType.STREAM:  # before the first record is parked
                former = replace(request, dead_letter_topic=described.policy.dead_letter_topic, token=self._token())
                await self._subscription(former)  # A refusal leaves no keeper, for which retention would wait.
                name = keeper_of((await self.describe_topic(topic)).shard, described.subscription_id)
                await self.create_subscription(dead_letter_topic, name, type="QUEUE", start="earliest", if_absent=True)
        return await self._subscription(request)

    async def parked_keys(self, topic: str, subscription: str, key: bytes | None = None) -> list[ParkedKeyInfo]:
        """Return the parked keys of a STREAM in the order in which they were parked; or only ``key``."""
        request = requests.ListParkedKeys(topic=topic, subscription=subscription, key=key)
        return [each for page in await self._list(topic, request, replies.ParkedKeyList) for each in page.keys]

    async def resume_key(self, topic: str, subscription: str, key: bytes, *, drop: bool = False) -> None:
        """Deliver the parked records of a key in order, and then newer ones. The key stays parked until they are done.

        ``drop``: the records that are parked now are not delivered; they stay in the dead-letter topic.
        """
        request = requests.ResumeKey(topic=topic, subscription=subscription, key=key, token=self._token(), drop=drop)
        await self._ask(request, replies.Done)

    # Requests

    def store(self) -> Store:
        """Return the ledger's store.

        :meta private:
        """
        return self.client.store if self._ledger_url is None else open_store(self._ledger_url)

    def _all_shards(self) -> int:
        self._lease.require_own_loop()
        return self.client.cluster_watch.shards.shards

    def _token(self) -> str:
        return self.client.new_token()

    async def _ask(self, request: request_fields.TopicRequest, kind: type[ReplyT]) -> ReplyT:
        request = self._bound(request)
        return await self._at(request.topic, partial(self._request, request=request, kind=kind))

    async def _at(self, topic: str, ask: Callable[[int], Awaitable[T]]) -> T:
        """Return what ``ask`` returns for the shard of ``topic``. Raises InvalidNameError."""
        self._all_shards()
        request_fields.require_name("topic", topic)
        return await self.client.places.at(topic, ask, self._timeout_seconds)

    async def _create(self, request: requests.CreateTopic | requests.ImportTopic, kind: type[ReplyT]) -> ReplyT:
        """Create a topic once no other shard can have it, or change it where it is."""
        self._all_shards()
        request_fields.require_name("topic", request.topic)
        request = self._bound(request)
        place = await self.client.places.find(request.topic, self._timeout_seconds)
        while True:
            shard, shards = place
            try:
                return await self._request(shard, replace(request, shards=shards), kind)
            except RequestRejectedError:
                # The leader may have known more shards, or the topic was deleted where it had been found.
                place = await self.client.places.find(request.topic, self._timeout_seconds)
                if place == (shard, shards):
                    raise

    async def _change_topic(self, request: request_fields.TopicRequest) -> TopicInfo:
        return (await self._ask(request, replies.TopicReply)).topic

    async def _subscription(self, request: request_fields.SubscriptionRequest) -> SubscriptionInfo:
        return (await self._ask(request, replies.SubscriptionReply)).subscription

    async def _ask_at(
        self,
        timestamp_ms: int,
        method: str,
        request: requests.CreateSubscription | requests.SeekSubscription,
        kind: type[ReplyT],
    ) -> ReplyT:
        """Send ``request`` with the positions of a time. They are looked up again if a segment was pruned meanwhile."""
        request = self._bound(request)
        for last in (False, False, True):
            topic_id, found = await self._positions_at(request.topic, timestamp_ms, method)
            given = {"positions": sorted(found.items()), "topic_id": request.topic_id or topic_id}
            try:
                return await self._ask(replace(request, **given), kind)
            except RequestRejectedError as error:
                if last or error.verdict != "invalid":
                    raise
                present = await self.describe_topic(request.topic)
                if found.keys() <= {each.segment for each in present.segments}:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _positions_at(self, topic: str, timestamp_ms: int, method: str) -> tuple[int, dict[int, int]]:
        """Return the topic's id, and segment → offset of its first record stored at that time or later."""
        require_time_ms(f"{method}: timestamp_ms", timestamp_ms)
        if timestamp_ms > self.client.now_ms():
            raise ConfigError(
                f"{method}: timestamp_ms={timestamp_ms} is in the future; use 'latest' for the present end"
            )
        store = self.store()
        await self.client.cluster_watch.ledger_id(store, self._timeout_seconds)
        described = await self.describe_topic(topic)
        if described.external is not None:
            raise ConfigError(
                f"{method}: topic {topic!r} is external, so only its source knows when its records were stored; "
                "give no timestamp"
            )
        return described.topic_id, await positions_at(Ledger(store, described.shard), described, timestamp_ms)

    async def _list(self, topic: str | None, request: request_fields.ListRequest, kind: type[PageT]) -> list[PageT]:
        """Return the pages of the shard of ``topic``; None: of all shards."""
        list_shard = partial(self._list_shard, request=request, kind=kind)
        if topic is not None:
            return await self._at(topic, list_shard)
        return [page for pages in await gathered(*map(list_shard, range(self._all_shards()))) for page in pages]

    async def _list_shard(self, shard: int, request: request_fields.ListRequest, kind: type[PageT]) -> list[PageT]:
        pages = [await self._request(shard, request, kind)]
        while (after := pages[-1].next) is not None:
            pages.append(await self._request(shard, replace(request, after=after), kind))
        return pages

    async def _request_known(
        self, name: str, request: requests.DescribeProducer | requests.DeleteProducer, kind: type[ReplyT]
    ) -> list[ReplyT]:
        """Return the replies of the shards that know the producer ``name``, by shard."""

        async def reply_of(shard: int) -> ReplyT | None:
            try:
                return await self._request(shard, request, kind)
            except RequestRejectedError as error:
                if error.verdict != "invalid":
                    raise
                return None

        asked = map(reply_of, range(self._all_shards()))
        if not (found := [reply for reply in await gathered(*asked) if reply is not None]):
            raise RequestRejectedError("invalid", f"no shard has a producer {name!r}; see: headgate producer list")
        return found

    async def _request(self, shard: int, request: requests.AnyRequestBody, kind: type[ReplyT]) -> ReplyT:
        """Return the body of the reply to ``request``, which must be of type ``kind``. Raises InvalidNameError."""
        for named in _NAMES:
            if (name := getattr(request, named, None)) is not None:
                request_fields.require_name(named, name)
        try:
            reply = await self.client.request(shard, request, self._timeout_seconds)
        except RequestRejectedError as error:
            raise await explained(self, request, error) from None
        return body_of(reply, kind, f"the leader of shard {shard}")


def subscription_type(given: SubscriptionType | str) -> SubscriptionType:
    try:
        return SubscriptionType(given)
    except ValueError:
        raise ConfigError(f"type={given!r}: use {', '.join(SubscriptionType)}") from None


async def explained_topic(client: Client, topic: str, error: RequestRejectedError) -> RequestRejectedError:
    """Return a better error than ``error`` if there is no ``topic``: it names the near ones."""
    async with Admin(client, timeout_seconds=EXPLANATION_SECONDS) as admin:
        return await explained(admin, requests.DescribeTopic(topic=topic), error)


async def check_dead_letter_topic(
    topic: str, dead_letter_topic: str, subscriptions_of: Callable[[str], Awaitable[Iterable[SubscriptionInfo]]]
) -> None:
    """Raise ConfigError if dead letters of ``dead_letter_topic`` return to ``topic``, over whatever topics.

    Only a client sees the topics of all shards.
    """
    pending: list[tuple[str, ...]] = [(topic, dead_letter_topic)]
    seen: set[str] = set()
    while pending:
        way = pending.pop()
        if way[-1] == topic:
            raise ConfigError(f"dead letters would return in a circle: {' to '.join(way)}; choose another topic")
        if way[-1] not in seen:
            seen.add(way[-1])
            # A topic further on that was deleted has no subscriptions.
            with contextlib.suppress(RequestRejectedError):
                known = await subscriptions_of(way[-1])
                pending += [(*way, each.policy.dead_letter_topic) for each in known if each.policy.dead_letter_topic]


def _milliseconds(name: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if (found := round(1000 * require_seconds(name, seconds, at_least=0.0))) > request_fields.MAX_DELAY_MS:
        raise ConfigError(f"{name}={seconds:g} is above a day")
    return found
