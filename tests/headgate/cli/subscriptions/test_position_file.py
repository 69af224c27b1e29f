"""Which positions fit a topic: each rule of the file, and each refusal with its reason."""

import msgspec
import pytest
from msgspec.structs import replace

from headgate import ExternalSource, SubscriptionInfo, SubscriptionType, TopicInfo
from headgate.cli.subscriptions.position_file import (
    MAX_FILE_BYTES,
    PositionFileError,
    SavedPositions,
    decode_positions,
    positions_to_restore,
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


def changed(number: int, **fields: object) -> SavedPositions:
    """Return the file with other ``fields`` in the entry ``number``."""
    segments = list(SAVED.segments)
    segments[number] = msgspec.structs.replace(segments[number], **fields)
    return msgspec.structs.replace(SAVED, segments=segments)


def test_an_export_holds_what_an_import_checks() -> None:
    written = msgspec.json.encode(SAVED)

    assert [(0, 5, 12, True), (1, 0, 4, False)] == [
        (each.segment, each.position, each.end_offset, each.sealed) for each in SAVED.segments
    ]
    assert decode_positions(written) == SAVED
    assert positions_to_restore(SAVED, ORDERS, BILLING) == {0: 5, 1: 0}


def test_another_subscription_of_the_topic_gets_the_positions() -> None:
    assert positions_to_restore(SAVED, ORDERS, subscription("orders", "audit")) == {0: 5, 1: 0}


def test_a_segment_that_is_pruned_during_the_export_is_left_out() -> None:
    pruned = replace(ORDERS, segments=ORDERS.segments[1:])

    assert [1] == [each.segment for each in saved_positions(pruned, BILLING, 0).segments]


def test_a_segment_that_was_read_to_its_end_may_be_pruned() -> None:
    pruned = replace(ORDERS, segments=ORDERS.segments[1:])

    assert positions_to_restore(changed(0, position=12), pruned, BILLING) == {1: 0}
    for saved in (SAVED, changed(0, position=12, sealed=False)):
        with pytest.raises(PositionFileError, match="was not read to its end, and topic 'orders' has pruned it"):
            positions_to_restore(saved, pruned, BILLING)


@pytest.mark.parametrize(
    ("saved", "described", "reason"),
    [
        (SAVED, replace(ORDERS, topic="payments"), "are of topic 'orders', not of 'payments'"),
        (SAVED, replace(ORDERS, topic_id=2), "with id 1, which was deleted: the present one has id 2"),
        (changed(1, segment=0), ORDERS, "names segment 0 twice"),
        (changed(0, created_at_ms=60_000), ORDERS, "segment 0 was created at 1970-01-01 00:01.*of another cluster, or"),
        (changed(1, position=5), ORDERS, "segment 1 at position 5 is beyond its end 4"),
    ],
    ids=["another topic", "a topic created again", "twice", "another cluster", "beyond the end"],
)
def test_positions_that_do_not_fit_are_refused(saved: SavedPositions, described: TopicInfo, reason: str) -> None:
    with pytest.raises(PositionFileError, match=reason):
        positions_to_restore(saved, described, BILLING)


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
    for refused in (lambda: saved_positions(described, of, 0), lambda: positions_to_restore(SAVED, described, of)):
        with pytest.raises(PositionFileError, match=reason):
            refused()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "holds no positions of 'headgate subscription export'"),
        (b"\xff\xfe", "holds no positions"),
        (b'{"format": "other", "version": 1}', "holds no positions"),
        (msgspec.json.encode(changed(0, position=-1)), "Expected `int` >= 0"),
        (msgspec.json.encode(msgspec.structs.replace(SAVED, version=2)), "has version 2, and this command reads"),
        (b" " * (MAX_FILE_BYTES + 1), "is larger than 16777216 bytes"),
    ],
    ids=["empty", "no text", "another format", "negative", "another version", "too large"],
)
def test_a_file_that_cannot_be_read_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(PositionFileError, match=reason):
        decode_positions(data)
