"""A message on a request topic is a request of its sender, or it yields a reason."""

import msgspec
import pytest

from controller.leader.request_decoding import MAX_SEARCHED_BYTES, Address, Malformed, read_request, read_request_id
from headgate.protocol import codec
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import DescribeTopic, ListTopics, Request

THIS = PROTOCOL_VERSION
SENDER = "shop/till-3"
BODY = {"type": "describe_topic", "topic": "orders"}
DEEP = 100_000
"""More nested values than any Python decodes: 3.13 manages 5000."""


def packed(body: object = BODY, **changes: object) -> bytes:
    return msgspec.msgpack.encode({"request_id": 7, "client_id": "till-3", "protocol": THIS, "body": body} | changes)


def test_a_valid_request_carries_the_address_of_its_sender():
    assert read_request(packed(), SENDER, b"") == Request(
        request_id=7, protocol=THIS, client_id=SENDER, body=DescribeTopic(topic="orders")
    )


@pytest.mark.parametrize(
    ("payload", "kind", "reason", "address"),
    [
        (b"\xc1", "not_msgpack", "not msgpack", None),
        (packed(BODY | {"topic": "no/slash"}), "invalid", f"not a request of protocol {THIS}", Address(7, SENDER)),
        (packed(BODY | {"type": "unheard_of"}), "invalid", f"not a request of protocol {THIS}", Address(7, SENDER)),
        (packed(client_id="no/slash"), "invalid", "client_id", None),
        (packed({"type": "produce"}), "invalid", "missing required field", Address(7, SENDER)),
        (
            packed(msgspec.Raw(b"\x82\xa4type\xadopen_producer\xa5token\xa2\xff\xfe")),
            "not_msgpack",
            "text is not UTF-8",
            Address(7, SENDER),
        ),
        (packed(msgspec.Raw(b"\x82\xa4type\xablist_topics\xa1x" + b"\x91" * DEEP + b"\xc0")), "not_msgpack", "", None),
        (
            packed(protocol=THIS + 1),
            "protocol",
            f"of protocol {THIS + 1}; this leader supports protocol {THIS}",
            Address(7, SENDER),
        ),
        (
            msgspec.msgpack.encode({"request_id": 7, "client_id": "till-3", "body": BODY}),
            "protocol",
            f"a request of protocol 1; this leader supports protocol {THIS}",
            Address(7, SENDER),
        ),
        (
            packed(BODY | {"topic": 5}, protocol=THIS + 1),
            "protocol",
            f"of protocol {THIS + 1}; this leader supports protocol {THIS}",
            Address(7, SENDER),
        ),
        (
            packed(BODY | {"topic": "x" * MAX_MESSAGE_BYTES}),
            "too_large",
            f"the limit is {MAX_MESSAGE_BYTES}",
            Address(7, SENDER),
        ),
    ],
    ids=[
        "garbage",
        "a value out of range",
        "unknown type",
        "invalid client id",
        "fields missing",
        "not UTF-8",
        "deeply nested",
        "another version",
        "no version, as the first one",
        "both",
        "too large",
    ],
)
def test_a_malformed_message_yields_the_reason_and_the_address(payload, kind, reason, address):
    found = read_request(payload, SENDER, b"")

    assert isinstance(found, Malformed)
    assert (found.kind, found.address) == (kind, address)
    assert reason in found.reason


def test_a_request_for_another_ledger_is_left_to_the_cluster_that_has_it() -> None:
    own, other = packed(ledger_id=b"a" * 16), packed(ledger_id=b"b" * 16)
    found = [read_request(each, SENDER, b"a" * 16) for each in (own, other, packed())]

    assert isinstance(found[0], Request)
    assert [(each.kind, each.address) for each in found[1:]] == [
        ("other_ledger", None),
        ("invalid", Address(7, SENDER)),
    ]


@pytest.mark.parametrize("sender", ["shop/till-4", "shop/", "/till-3", "till-3", "s hop/till-3", "shop/till-3/more"])
@pytest.mark.parametrize("body", [BODY, {"type": "unheard_of"}], ids=["valid", "invalid"])
def test_a_request_in_another_name_than_its_topics_is_not_read(sender: str, body: dict[str, object]):
    found = read_request(packed(body), sender, b"")

    assert isinstance(found, Malformed)
    assert found.kind == "sender"
    assert found.address in (None, Address(7, sender)), "nothing is sent to the client that is named"


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
def test_the_id_of_a_request_is_read_without_decoding_it(number: int) -> None:
    request = Request(request_id=number, protocol=THIS, client_id="till-3", leader_epoch=2**31 - 1, body=ListTopics())

    assert read_request_id(codec.encode(request), SENDER) == Address(number, SENDER)
    assert read_request_id(codec.encode(request)[:21] + b"\xc1" * 1000, SENDER) == Address(number, SENDER)


@pytest.mark.parametrize(
    ("payload", "sender"),
    [
        (b"", SENDER),
        (packed(request_id="seven"), SENDER),
        (packed(request_id=2**63), SENDER),
        (packed(request_id=-1), SENDER),
        (msgspec.msgpack.encode({"request_id": 7})[:-1], SENDER),
        (msgspec.msgpack.encode({"request_id": 2**40})[:-1], SENDER),
        (msgspec.msgpack.encode({"body": "x" * MAX_SEARCHED_BYTES, "request_id": 7}), SENDER),
        (packed(), "shop/till-3/more"),
    ],
    ids=["empty", "text", "too large", "negative", "cut", "cut within", "too late", "no sender"],
)
def test_a_request_without_a_readable_id_has_no_address(payload: bytes, sender: str) -> None:
    assert read_request_id(payload, sender) is None
