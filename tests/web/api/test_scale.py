"""How many consumers a subscription can use."""

from headgate.views.subscriptions import SegmentAssignment
from tests.support.samples.status_documents import subscription_document
from web.api.documents import scale_of


def test_open_segments_count_and_those_without_a_backlog_are_not_busy() -> None:
    rows = [("granted", 3), ("waiting", 0), ("shared", 1), ("revoking", None), ("blocked", 9), ("drained", 0)]
    segments = tuple(
        SegmentAssignment(segment=n, status=status, acknowledged_offset=0, next_offset=9, unacknowledged=left)
        for n, (status, left) in enumerate(rows)
    )
    document = subscription_document(segments)
    scale = scale_of(document)

    assert (4, 3) == (scale.usable_consumers, scale.busy_consumers)
    summary = document.summary
    assert (summary.connected_consumers, summary.backlog_records) == (scale.connected_consumers, scale.backlog_records)
