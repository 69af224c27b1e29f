"""Every request that rests on what a consumer has read says what that was."""

import contextlib
from types import SimpleNamespace

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.consumer_context import ConsumerOptions, ConsumerRequests
from headgate.client.decisions.unstored_acknowledgements import AcknowledgementBatch
from headgate.errors import NoLeaderError
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate.protocol.replies import ResumingKey
from headgate.protocol.request_fields import ReaderRequest


class Silent:
    """A client of a cluster without a leader. It notes what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[ReaderRequest] = []
        self.cluster_watch = SimpleNamespace(ledger=b"")

    async def request(self, shard: int, body: ReaderRequest, *_: object) -> None:
        self.sent.append(body)
        raise NoLeaderError(f"no leader of shard {shard}")


async def test_a_leader_of_another_history_can_refuse_whatever_comes_first() -> None:
    client = Silent()
    options = ConsumerOptions(SubscriptionType.STREAM, "latest", None, None, 1.0, False, "error")
    requests = ConsumerRequests(client, topic="orders", subscription="billing", consumer="c", options=options)
    requests.history.add(7, 11)
    resuming = ResumingKey(segment=0, generation=1, key=b"k", parking=1, topic="d", number=1, last=1, stored=1)
    record = ConsumedRecord("orders", SegmentId(0), Offset(0), b"k", b"", 0, Generation(1))
    for asked in (
        requests.register({}, 1.0),
        requests.heartbeat([], []),
        requests.acknowledge(AcknowledgementBatch(), 1),
        requests.begin([]),
        requests.park(record, "why"),
        requests.unpark(resuming),
        requests.confirm_dead_letters([]),
    ):
        with contextlib.suppress(NoLeaderError):
            await asked

    assert {kind.__name__: [(7, 11)] for kind in ReaderRequest.__subclasses__()} == {
        type(body).__name__: body.history for body in client.sent
    }
