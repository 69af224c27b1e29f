"""An Admin without a cluster: it answers as a leader of the sample documents would, and records commands."""

import asyncio

from msgspec.structs import replace

from headgate.client.open_letters import OpenLetters
from headgate.client.topic_source import TopicSource
from headgate.model.headers import Origin
from headgate.protocol import replies
from headgate.protocol.requests import is_command
from headgate.reading.stored_rows import LedgerRecord
from headgate.views.cluster import DaemonInfo
from headgate.views.subscriptions import ParkedKeyInfo, SeekResult, SegmentSeek
from tests.support.fakes.cli_client import OfflineAdmin
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.status_documents import HOSTILE, FakeSource, subscription_document, topic_document


class RecordingAdmin(OfflineAdmin):
    """``sent`` gets (user, command); ``error`` is raised for a command."""

    def __init__(self, user, sent, error):
        self._user, self._sent, self._error = user, sent, error

    def store(self):
        return FakeStore()

    def _all_shards(self):
        return 1

    async def describe_cluster(self, *, blocked=False):
        found = (await FakeSource().overview()).cluster
        daemons = tuple(DaemonInfo(daemon=name, state="ready", spread="settled") for name in ("one", "two"))
        return replace(found, daemons=daemons, totals=replace(found.totals, daemons=2))

    async def _request(self, shard, request, kind):
        if is_command(request) and not getattr(request, "dry_run", False):
            self._sent.append((self._user, request))
            if self._error is not None:
                raise self._error
        if kind is replies.SeekReply:
            moves = (SegmentSeek(segment=0, from_offset=300, to_offset=0, end_offset=400),)
            return replies.SeekReply(result=SeekResult(seek_generation=1, moves=moves))
        if kind is replies.ParkedKeyList:
            parked = {"records": 3, "since_ms": 0, "reason": "", "dead_letter_topic": "", "is_resuming": False}
            parked["parking"] = 4
            return replies.ParkedKeyList(
                keys=tuple(ParkedKeyInfo(key=each, **parked) for each in (b"alice", b"\xff")), next=None
            )
        if kind is replies.TopicReply:
            return replies.TopicReply(topic=topic_document().topic)
        if kind is replies.TopicList:
            return replies.TopicList(topics=[topic_document().topic], next=None)
        unused = getattr(request, "subscription", None) == "unused" or getattr(request, "topic", None) == "unused"
        described = subscription_document().subscription
        described = replace(described, consumers=() if unused else described.consumers)
        if kind is replies.SubscriptionList:
            return replies.SubscriptionList(subscriptions=[described], next=None)
        return replies.SubscriptionReply(subscription=described) if kind is not replies.Done else replies.Done()


def with_letters(monkeypatch, *, kind="QUEUE", number=2, parked=0):
    """Give the sample subscription dead letters in topic ``dead``, with a hostile key and reason."""
    described = replace(subscription_document().subscription, type=kind)
    opened = TopicSource(replace(topic_document().topic, topic="dead"), None, "", 1, None)
    found = OpenLetters(
        topic_document().topic, described, opened, "closing", {0: 1}, {0: 3}, "0/1/0:3", {b"k": 0} if parked else {}
    )
    origin = {"ledger": "", "topic": "orders", "topic_id": 1, "subscription": "billing", "subscription_id": 2}
    origin |= {"segment": 0, "deliveries": 5, "reason": HOSTILE, "died_at_ms": 10}

    async def letters(_):
        await asyncio.sleep(0.01)
        for offset in range(1, 1 + number):
            yield LedgerRecord(0, offset, 0, HOSTILE.encode(), b"v"), Origin(offset=100 + offset, **origin)

    async def find_open(admin, topic, name, *, through=None, store=None):
        assert (topic, name, through) in (("orders", "billing", None), ("orders", "billing", found.through))
        return found

    async def send_back(_, admin):
        admin._sent.append((admin._user, "send_back"))
        return number

    for place in ("web.actions", "headgate.client.open_letters"):
        monkeypatch.setattr(f"{place}.find_open", find_open)
    monkeypatch.setattr(OpenLetters, "letters", letters)
    monkeypatch.setattr(OpenLetters, "send_back", send_back)
