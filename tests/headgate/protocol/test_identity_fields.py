"""A batch with a part of an identity is invalid: a misspelt field would have it stored twice, or not at all."""

from typing import Any

import msgspec
import pytest

from headgate.protocol import codec
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import OpenProducer, Request

PRODUCE = {"type": "produce", "topic": "orders", "records": [[b"k", b"v", 0]]}
OPEN = {"type": "open_producer", "token": "t"}


def decoded(body: dict[str, Any]) -> Request:
    return codec.decode_request(
        msgspec.msgpack.encode({"request_id": 1, "client_id": "c", "protocol": PROTOCOL_VERSION, "body": body})
    )


@pytest.mark.parametrize(
    ("identity", "problem"),
    [
        ({"producer_ID": 2, "sequence": 0}, "sequence without producer_id"),
        ({"producer_id": None, "sequence": 7}, "sequence without producer_id"),
        ({"producer_id": 2, "seqence": 7}, "producer_id without sequence"),
        ({"producer_epoch": 1}, "producer_epoch without producer_id"),
    ],
    ids=["misspelt id", "no id", "misspelt sequence", "epoch alone"],
)
def test_a_part_of_an_identity_is_invalid(identity: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        decoded(PRODUCE | identity)


@pytest.mark.parametrize("identity", [{}, {"producer_id": 2, "sequence": 0}, {"producer_id": None, "sequence": None}])
def test_a_whole_identity_and_none_are_valid(identity: dict[str, Any]) -> None:
    request = decoded(PRODUCE | identity)

    assert request == codec.decode_request(codec.encode(request)), "the first sequence, 0, is sent"


def test_an_epoch_to_continue_needs_its_id() -> None:
    with pytest.raises(msgspec.ValidationError, match="producer_epoch without producer_id"):
        decoded(OPEN | {"producer_epoch": 3})
    assert isinstance(decoded(OPEN | {"producer_epoch": 0}).body, OpenProducer)
