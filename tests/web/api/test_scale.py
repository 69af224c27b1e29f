"""How many consumers a subscription can use."""

from msgspec.structs import replace

from headgate.views.subscriptions import SegmentAssignment
from tests.support.samples.status_documents import subscription_document
from web.api.scale import scale_of


def test_open_segments_count_and_those_without_a_backlog_are_not_busy() -> None:
    rows = [("granted", 3), ("waiting", 0), ("shared", 1), ("revoking", None), ("blocked", 9), ("drained", 0)]
    segments = tuple(
        SegmentAssignment(segment=n, status=status, acknowledged_offset=0, next_offset=9, unacknowledged=left)
        for n, (status, left) in enumerate(rows)
    )
    document = subscription_document()
    document = replace(document, subscription=replace(document.subscription, segments=segments))
    scale = scale_of(document)

    assert (4, 3) == (scale.usable_consumers, scale.busy_consumers)
    assert document.summary.connected_consumers == scale.connected_consumers
    assert document.summary.backlog_records == scale.backlog_records
