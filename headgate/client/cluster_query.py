"""Ask all daemons or shards: until one describes the whole cluster, and which name was probably meant."""

import asyncio
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final, Protocol

from msgspec.structs import replace

from headgate.client.connection import Client
from headgate.client.request_attempts import body_of
from headgate.errors import HeadgateError, NoLeaderError, ProtocolError, RequestRejectedError
from headgate.model.text import listed
from headgate.process.background import end_tasks
from headgate.protocol import requests
from headgate.protocol.codec import LeaderAnnouncement
from headgate.protocol.replies import ClusterReply, Reply
from headgate.views.cluster import ClusterInfo
from headgate.views.subscriptions import SubscriptionInfo
from headgate.views.topics import TopicInfo

NEXT_DAEMON_SECONDS: Final = 0.75
"""A daemon answers within milliseconds, or within two seconds if it has to wait for another one."""


async def describe_cluster(client: Client, shards: int, timeout_seconds: float, *, blocked: bool) -> ClusterInfo:
    """Return the cluster; with ``blocked`` only the subscriptions that have blocked segments.

    Every leader can answer, whatever its shard, so one daemon that leads anything is asked. While it does not reply,
    another one is asked as well every `NEXT_DAEMON_SECONDS`: a frozen daemon must not hide what the others know.

    Raises NoLeaderError: no leader answered in time. The text says which shards have none.
    """
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    client.publish_presence(online=True, qos=1)
    first = await _ask(client, shards, requests.DescribeCluster(blocked=blocked), deadline)
    pages = [] if first is None else [first]
    while pages and (after := pages[-1].next) is not None:
        page = await _ask(client, shards, requests.DescribeCluster(blocked=blocked, after=after), deadline)
        if page is None:
            first = None
            break
        pages.append(page)
    if first is None:
        raise NoLeaderError(_explanation(client, shards, timeout_seconds))
    if first.overview is None:
        raise ProtocolError("a daemon answered describe_cluster without the overview: it is of another version")
    return replace(first.overview, subscriptions=tuple(row for page in pages for row in page.subscriptions))


async def _ask(client: Client, shards: int, request: requests.DescribeCluster, deadline: float) -> ClusterReply | None:
    loop = asyncio.get_running_loop()
    for shard in range(shards):
        await client.watch_leader(shard)
    asked: dict[str, asyncio.Task[Reply]] = {}
    changed = asyncio.Event()
    removals = [client.on_leader(shard, lambda _: changed.set()) for shard in range(shards)]
    try:
        next_at = loop.time()
        while (remaining := deadline - loop.time()) > 0:
            changed.clear()
            leader = _not_asked(client, shards, asked)
            if leader is not None and (not asked or loop.time() >= next_at):
                question = client.request(leader.shard, request, remaining)
                asked[leader.instance] = loop.create_task(question)
                next_at = loop.time() + NEXT_DAEMON_SECONDS
                leader = _not_asked(client, shards, asked)
            wait_seconds = remaining if leader is None else min(remaining, max(0.0, next_at - loop.time()))
            news = loop.create_task(changed.wait())
            try:
                await asyncio.wait({news, *asked.values()}, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks(news)
            if (reply := _answer(asked)) is not None:
                return reply
    finally:
        for remove in removals:
            remove()
        # What becomes of the questions that were not answered first does not matter any more.
        await end_tasks(*asked.values())
    return None


def _not_asked(client: Client, shards: int, asked: dict[str, asyncio.Task[Reply]]) -> LeaderAnnouncement | None:
    """Return the leader of the first shard whose daemon was not asked; None: there is none at present."""
    known = (client.leader(shard) for shard in range(shards))
    return next((leader for leader in known if leader is not None and leader.instance not in asked), None)


def _answer(asked: dict[str, asyncio.Task[Reply]]) -> ClusterReply | None:
    """Return an answer; raises the refusal of a daemon. One that did not reply in time may be asked again."""
    for instance, task in list(asked.items()):
        if not task.done():
            continue
        del asked[instance]
        if isinstance(task.exception(), NoLeaderError):
            continue
        return body_of(task.result(), ClusterReply, f"daemon {instance!r}")
    return None


def _explanation(client: Client, shards: int, timeout_seconds: float) -> str:
    waited = f"(waited {timeout_seconds:g} s)"
    if not client.transport.connected:
        return f"{client.unanswered(0)} {waited}"
    by_reason: dict[str, list[int]] = {}
    for shard in range(shards):
        by_reason.setdefault(client.unanswered(shard), []).append(shard)
    reasons = "; ".join(f"shard{'s' * (len(each) > 1)} {listed(each)}: {why}" for why, each in by_reason.items())
    broker = client.cluster_watch.broker
    advice = f"{broker} answers, so look at the logs of the daemons, and at ZooKeeper"
    if client.finds_no_daemon:
        advice = f"no daemon is connected to {broker}: start one, or see the log of one that runs"
    return (
        f"no leader describes cluster {client.cluster!r} {waited}: {reasons}; {advice} (headgate doctor "
        "--daemon-config FILE, on the machine of a daemon, names those that ZooKeeper knows)"
    )


class Lists(Protocol):
    """What exists, as an `Admin` can ask."""

    async def list_topics(self) -> Sequence[TopicInfo]: ...
    async def list_subscriptions(self, topic: str) -> Sequence[SubscriptionInfo]: ...


def unknown_topic(topic: str, existing: Iterable[str]) -> str:
    """Return that ``topic`` does not exist, and which of the ``existing`` ones may be meant."""
    hint = (
        _hint(topic, existing)
        or f"create it first: headgate topic create {topic}, or topic import if another system stores it"
    )
    return f"topic {topic!r} does not exist; {hint}"


def unknown_subscription(topic: str, subscription: str, existing: Iterable[str]) -> str:
    """Return that ``topic`` has no such subscription, and which of the ``existing`` ones may be meant."""
    hint = _hint(subscription, existing) or "it has none: a consumer creates its own"
    return f"topic {topic!r} has no subscription {subscription!r}; {hint}"


async def explained(
    lists: Lists, request: requests.AnyRequestBody, error: RequestRejectedError
) -> RequestRejectedError:
    """Return a better error than ``error`` if it was caused by a name in ``request``, otherwise ``error``.

    A topic's name selects its shard, so only the lists of all shards have the near names: the leader that refuses a
    request names none. A user who may not list what exists gets the leader's words.
    """
    topic, subscription = getattr(request, "topic", None), getattr(request, "subscription", None)
    if error.verdict != "invalid" or topic is None or isinstance(request, requests.CreateTopic | requests.ImportTopic):
        return error
    try:
        topics = [each.topic for each in await lists.list_topics()]
        if topic not in topics:
            return RequestRejectedError(error.verdict, unknown_topic(topic, topics))
        if subscription is None or isinstance(request, requests.CreateSubscription | requests.RegisterConsumer):
            return error
        subscriptions = [each.subscription for each in await lists.list_subscriptions(topic)]
    except HeadgateError:  # The user may not list them, or a shard has no leader.
        return error
    if subscription in subscriptions:
        return error
    return RequestRejectedError(error.verdict, unknown_subscription(topic, subscription, subscriptions))


def _hint(name: str, existing: Iterable[str]) -> str:
    names = sorted(existing)
    if near := get_close_matches(name, names):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are: {listed(names)}" if names else ""
