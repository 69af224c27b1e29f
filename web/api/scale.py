"""How many consumers a subscription can use now, in plain numbers: autoscalers such as KEDA read one of them. Pure."""

import msgspec

from web.api.documents import SubscriptionDocument


class ScaleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one subscription that decide how many consumers are worth running, by the leader of its shard."""

    as_of_ms: int
    daemon: str
    usable_consumers: int
    """Open segments, neither blocked nor drained: so many consumers can each have one. Children of a split count once
    their ancestors are drained."""
    busy_consumers: int
    """Open segments with unacknowledged records, or with an unknown number of them; 0: nothing is to be read."""
    connected_consumers: int
    backlog_records: int | None


def scale_of(document: SubscriptionDocument) -> ScaleDocument:
    """Return what ``document`` means for the number of consumers."""
    open_segments = [each for each in document.subscription.segments if each.status not in ("blocked", "drained")]
    return ScaleDocument(
        as_of_ms=document.as_of_ms,
        daemon=document.daemon,
        usable_consumers=len(open_segments),
        busy_consumers=sum(each.unacknowledged != 0 for each in open_segments),
        connected_consumers=document.summary.connected_consumers,
        backlog_records=document.summary.backlog_records,
    )
