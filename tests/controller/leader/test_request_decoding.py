"""A message on the request topic is a request, or it yields a reason and the client to tell."""

from __future__ import annotations

import msgspec
import pytest

from controller.leader.request_decoding import Address, Malformed, read_request
from headgate.protocol import messages as m

BODY = {"type": "describe_topic", "topic": "orders"}


def packed(body: dict[str, object] = BODY, **changes: object) -> bytes:
    return msgspec.msgpack.encode({"request_id": 7, "client_id": "till-3", "body": body} | changes)


def test_a_valid_request_is_returned_unchanged():
    assert read_request(packed()) == m.Request(request_id=7, client_id="till-3", body=m.DescribeTopic(topic="orders"))


@pytest.mark.parametrize(
    ("payload", "kind", "reason", "address"),
    [
        (b"\xc1", "not_msgpack", "not msgpack", None),
        (packed(BODY | {"topic": "no/slash"}), "invalid", "not a request of protocol 1", Address(7, "till-3")),
        (packed(BODY | {"type": "unheard_of"}), "invalid", "not a request of protocol 1", Address(7, "till-3")),
        (packed(client_id="no/slash"), "invalid", "client_id", None),
        (packed(protocol=2), "protocol", "of protocol 2; this leader supports protocol 1", Address(7, "till-3", 2)),
        (
            packed(BODY | {"topic": 5}, protocol=2),
            "protocol",
            "of protocol 2; this leader supports protocol 1",
            Address(7, "till-3", 2),
        ),
        (
            packed(BODY | {"topic": "x" * m.MAX_MESSAGE_BYTES}),
            "too_large",
            f"the limit is {m.MAX_MESSAGE_BYTES}",
            Address(7, "till-3"),
        ),
    ],
    ids=[
        "garbage",
        "a value out of range",
        "unknown type",
        "invalid client id",
        "another version",
        "both",
        "too large",
    ],
)
def test_a_malformed_message_yields_the_reason_and_the_address(payload, kind, reason, address):
    found = read_request(payload)

    assert isinstance(found, Malformed)
    assert (found.kind, found.address) == (kind, address)
    assert reason in found.reason
