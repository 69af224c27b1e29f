"""Defaults of entries: what the absence of a field in a stored ledger means."""

import typing

import msgspec
import pytest

from headgate.model import entries as e
from headgate.model.entries import SubscriptionType


def test_an_absent_number_keeps_its_meaning() -> None:
    """Entries are permanent, and a default is not written. 0, 0 are all buckets."""
    kinds = *typing.get_args(e.AnyEntry), e.AcknowledgedRange
    fields = [
        (f"{kind.__name__}.{field.name}", field.default) for kind in kinds for field in msgspec.structs.fields(kind)
    ]
    defaults = {name: default for name, default in fields if type(default) is int}

    assert defaults == {
        "TermStarted.term_id": 0,
        "ProducerOpened.incarnation": 0,
        "RecordsStored.producer_epoch": 0,
        "RecordsStored.sequence": 0,
        "AcknowledgedRange.first_bucket": 0,
        "AcknowledgedRange.end_bucket": 0,
        "TopicCreated.buckets": 16,
        "TopicImported.hash_bits": 0,
        "ConsumerRegistered.capacity": 100,
        "SegmentGranted.first_bucket": 0,
        "SegmentGranted.end_bucket": 0,
        "SegmentRevoked.first_bucket": 0,
        "SegmentRevoked.end_bucket": 0,
        "SegmentReleased.first_bucket": 0,
        "SegmentReleased.end_bucket": 0,
    }


@pytest.mark.parametrize("text", ["STREAM", "stream", "Stream"])
def test_a_type_is_read_in_any_case_and_written_in_capitals(text):
    assert SubscriptionType.STREAM is SubscriptionType(text)
    assert SubscriptionType.STREAM is msgspec.json.decode(f'"{text}"', type=SubscriptionType)
    assert b'"STREAM"' == msgspec.json.encode(SubscriptionType(text))
    assert "STREAM" == SubscriptionType(text)


@pytest.mark.parametrize("value", ["streams", "", None, 1])
def test_anything_else_is_no_type(value):
    with pytest.raises(ValueError, match="is not a valid SubscriptionType"):
        SubscriptionType(value)
