"""Count the segments that nothing reads at present, although they have unacknowledged records. Pure.

A consumer that reads a subscription to its end asks for it. A segment counts as read if each of its key
buckets is held without a revocation by

1. the asking consumer, which knows the grant: it is in its list, or
2. another consumer that is connected: it delivers the records itself.

So a segment counts while it is blocked, is handed over, has no holder, or is held by a consumer in its grace
period. A grant that is on its way counts as well.
"""

from collections import Counter
from collections.abc import Iterable

from headgate.model.bucket_ranges import buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS
from shard.state.subscription import Subscription
from shard.state.topic import TopicView


def unread_segments(
    subscription: Subscription, topic: TopicView, consumer: str, known: Iterable[tuple[int, int]]
) -> int:
    """Return their number; ``known``: (segment, generation) of the grants that the asking ``consumer`` knows."""
    known = set(known)
    read_buckets: Counter[int] = Counter()
    for held, holding in subscription.holdings.items():
        segment, holder = segment_of(held), subscription.consumers[holding.consumer]
        is_read = (
            (segment, holding.generation) in known
            if holding.consumer == consumer
            else holder.disconnected_at_ms is None
        )
        if is_read and holding.revoked_at_ms is None:
            read_buckets[segment] += len(buckets_of(held))
    return sum(
        tail.next_offset > subscription.position(segment) and read_buckets[segment] < KEY_BUCKETS
        for segment, tail in topic.tails.items()
    )
