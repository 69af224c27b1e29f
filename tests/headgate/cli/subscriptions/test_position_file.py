"""Which files hold positions, and which positions fit a topic; their rules are those of test_topic_position."""

import msgspec
import pytest
from msgspec.structs import replace

from headgate import ExternalSource, HeadgateError, SubscriptionInfo, SubscriptionType, TopicInfo
from headgate.cli.subscriptions.seek import (
    MAX_FILE_BYTES,
    SavedPositions,
    decode_positions,
    positions_to_restore,
    require_positions,
    saved_positions,
)
from tests.support.fakes.cli_client import segment, subscription, topic

BILLING = subscription("orders", "billing")
ORDERS = topic(
    "orders",
    segment(0, 0, 65_535, "sealed", next_offset=12, children=(1,)),
    segment(1, 0, 65_535, next_offset=4, parents=(0,)),
)
SAVED = saved_positions(ORDERS, BILLING, 1_700_000_000_000)
PRUNED = replace(ORDERS, segments=ORDERS.segments[1:])


def test_an_export_holds_what_an_import_checks() -> None:
    assert decode_positions(msgspec.json.encode(SAVED)) == SAVED
    assert positions_to_restore(SAVED, ORDERS, {}) == {0: 5, 1: 0}


def test_a_segment_that_is_created_after_the_export_starts_at_its_beginning() -> None:
    older = replace(BILLING, segments=BILLING.segments[:1])

    assert positions_to_restore(saved_positions(ORDERS, older, 0), ORDERS, {}) == {0: 5, 1: 0}


def test_a_segment_that_was_read_to_its_end_stays_there_or_may_be_pruned() -> None:
    whole = replace(SAVED, offsets={1: 0})

    assert positions_to_restore(whole, ORDERS, {}) == {0: 12, 1: 0}
    assert positions_to_restore(whole, PRUNED, {}) == {1: 0}
    assert positions_to_restore(SAVED, PRUNED, {0: 5}) == {1: 0}
    with pytest.raises(HeadgateError, match=r"segment 0 .* and pruned since.*; 'headgate subscription seek' moves"):
        positions_to_restore(SAVED, PRUNED, {})


@pytest.mark.parametrize(
    ("saved", "described", "reason"),
    [
        (SAVED, replace(ORDERS, topic="payments"), "is of topic 'orders', not of 'payments'"),
        (SAVED, replace(ORDERS, topic_id=2), "with the id 1, and the present one has the id 2"),
        (replace(SAVED, offsets={1: 5}), ORDERS, "segment 1 of topic 'orders' ends at 4"),
    ],
    ids=["another topic", "a topic created again", "beyond the end"],
)
def test_positions_that_do_not_fit_are_refused(saved: SavedPositions, described: TopicInfo, reason: str) -> None:
    with pytest.raises(HeadgateError, match=reason):
        positions_to_restore(saved, described, {})


@pytest.mark.parametrize(
    ("described", "of", "reason"),
    [
        (ORDERS, replace(BILLING, type=SubscriptionType.CHECKPOINT), "is of type CHECKPOINT"),
        (
            replace(ORDERS, external=ExternalSource(source="kinesis", positions="opaque", hash_bits=128)),
            BILLING,
            "reads an external topic",
        ),
    ],
    ids=["checkpoint", "external"],
)
def test_a_subscription_without_positions_is_refused(described: TopicInfo, of: SubscriptionInfo, reason: str) -> None:
    with pytest.raises(HeadgateError, match=reason):
        require_positions(described, of)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "holds no positions of 'headgate subscription export'"),
        (b"\xff\xfe", "holds no positions"),
        (b'{"format": "other"}', "holds no positions"),
        (b" " * (MAX_FILE_BYTES + 1), "is larger than 16777216 bytes"),
    ],
    ids=["empty", "no text", "another format", "too large"],
)
def test_a_file_that_cannot_be_read_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_positions(data)
