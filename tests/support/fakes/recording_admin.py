"""An Admin without a cluster: it answers as a leader of the sample documents would, and records commands."""

from headgate.client.admin import Admin
from headgate.protocol import messages as m
from headgate.views.subscriptions import ParkedKeyInfo, SeekResult, SegmentSeek
from tests.support.samples.status_documents import FakeSource, subscription_document, topic_document


class RecordingAdmin(Admin):
    """``sent`` gets (user, command); ``error`` is raised for a command."""

    def __init__(self, user, sent, error):
        self._user, self._sent, self._error = user, sent, error

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def _all_shards(self):
        return 1

    async def _at(self, topic, ask):
        return await ask(0)

    async def _create(self, request, kind):
        return await self._request(0, request, kind)

    def _token(self):
        return "token"

    async def describe_cluster(self, *, blocked=False):
        return (await FakeSource().overview()).cluster

    async def _request(self, shard, request, kind):
        if m.is_command(request) and not getattr(request, "dry_run", False):
            self._sent.append((self._user, request))
            if self._error is not None:
                raise self._error
        if kind is m.SeekReply:
            moves = (SegmentSeek(segment=0, from_offset=300, to_offset=0, end_offset=400),)
            return m.SeekReply(result=SeekResult(seek_generation=1, moves=moves))
        if kind is m.ParkedKeyList:
            key = ParkedKeyInfo(key=b"alice", records=3, since_ms=0, reason="", dead_letter_topic="", is_resuming=False)
            return m.ParkedKeyList(keys=(key,), next=None)
        if kind is m.TopicReply:
            return m.TopicReply(topic=topic_document().topic)
        return (
            m.SubscriptionReply(subscription=subscription_document().subscription) if kind is not m.Done else m.Done()
        )
