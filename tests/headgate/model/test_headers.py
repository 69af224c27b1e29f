"""What a program may give as headers of a record, and which ones are refused."""

from enum import Enum
from typing import Any

import pytest

from headgate.model.headers import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Headers,
    Origin,
    checked_headers,
    counted_bytes,
    wrong_headers,
)
from headgate.protocol.request_fields import MAX_FAILURE_CHARACTERS


class Name(str, Enum):  # noqa: UP042 - its str() is another text
    TRACE = "trace"


@pytest.mark.parametrize(
    "given",
    [
        {"trace": b"1", "kind": b""},
        [("trace", b"1"), ("kind", b"")],
        (each for each in [["trace", b"1"], ["kind", b""]]),
        {Name.TRACE: b"1", "kind": b""}.items(),
    ],
    ids=["mapping", "pairs", "generator of lists", "names of an enumeration"],
)
def test_pairs_and_mappings_are_headers(given: Any) -> None:
    found = checked_headers(given)

    assert found == (("trace", b"1"), ("kind", b""))
    assert {type(part) for pair in found for part in pair} == {str, bytes}


@pytest.mark.parametrize(
    ("given", "error", "reason"),
    [
        ({"a": "text"}, TypeError, r"item 0 is \('a', 'text'\); give pairs of a name \(str\) and a value \(bytes\)"),
        ([("a", b""), (b"a", b"")], TypeError, r"item 1 is \(b'a', b''\)"),
        (("a", b"1"), TypeError, "item 0 is 'a'"),
        ([("a", b"", b"")], TypeError, "item 0 is "),
        ([("a", None)], TypeError, "item 0 is "),
        ([("\ud800", b"")], ValueError, r"header 0 has the name '\\ud800'"),
    ],
    ids=["text", "binary name", "one pair", "three parts", "no value", "half a character"],
)
def test_anything_else_is_refused_by_its_place(given: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        checked_headers(given)


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ((("a", b""), ("a", b"")), None),
        ((("a", b""),) * MAX_HEADERS, None),
        ((("a", b""),) * (MAX_HEADERS + 1), f"{MAX_HEADERS + 1} headers; the limit is {MAX_HEADERS}"),
        ((("é", bytes(MAX_HEADER_BYTES - 2)),), None),
        ((("é", bytes(MAX_HEADER_BYTES - 1)),), f"headers of {MAX_HEADER_BYTES + 1} bytes"),
        ((("a", b""), ("", b"v")), "a header without a name"),
        ((("headgate-reason", b""),), "the header 'headgate-reason': names that begin with 'headgate-'"),
        ((("Headgate", b""),), None),
    ],
    ids=[
        *("a name twice", "as many as possible", "too many", "as large as possible", "too large"),
        *("no name", "a name of headgate's", "a similar name"),
    ],
)
def test_headers_have_limits(headers: Headers, wrong: str | None) -> None:
    found = wrong_headers(headers, reserved=False)

    assert (found is None) if wrong is None else (found or "").startswith(wrong)


def test_copies_may_have_names_of_headgate_beside_as_many_headers_as_possible() -> None:
    name = "n" * 100
    number = 2**63 - 1
    origin = Origin(
        ledger=name, topic=name, topic_id=number, subscription=name, subscription_id=number, segment=number, offset=number,
        deliveries=number, reason="\U0001f4a9" * MAX_FAILURE_CHARACTERS, died_at_ms=number, parked_number=number,
    )  # fmt: skip
    others = (("n" * 255, b"v"),) * MAX_HEADERS
    assert wrong_headers(others + origin.headers(), reserved=True) is None
    assert MAX_HEADERS * 256 == counted_bytes(others + origin.headers())
    assert wrong_headers((("headgate-x", b""),) * 17, reserved=True) is not None
    assert wrong_headers((("headgate-x", bytes(4097)),), reserved=True) is not None
