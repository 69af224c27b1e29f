"""The subscription type: one spelling in the ledger and on the wire, any case from people."""

import msgspec
import pytest

from headgate.model.entries import SubscriptionType


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
