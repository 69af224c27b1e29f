"""The limits of a line, in both directions."""

import msgspec
import pytest

from drain.protocol import (
    Backlog,
    BacklogResponse,
    CountedLedger,
    DrainedResponse,
    FailureResponse,
    decode_response,
    encode_line,
    encode_reply,
    wrong_ledger,
)

ROW = Backlog(topic_id=1, subscription_id=2, segment=0, sealed=True, records=0, size_bytes=0)
REPORT = BacklogResponse(id=5, rows=[ROW] * 4, watermark=9, as_of_ms=1)


@pytest.mark.parametrize("response", [REPORT, DrainedResponse(id=5, drained=dict.fromkeys(range(50), 4))])
def test_a_reply_that_fits_is_sent_unchanged(response: BacklogResponse | DrainedResponse) -> None:
    line = encode_line(response)

    assert encode_reply(response, limit_bytes=len(line)) == line


def test_a_report_that_does_not_fit_says_that() -> None:
    size = len(encode_line(REPORT))
    reply = decode_response(encode_reply(REPORT, limit_bytes=size - 1))

    reason = f"4 backlogs are too many to report: the reply has {size} bytes, and a line has {size - 1} at most"
    assert reply == FailureResponse(id=5, error=reason)


def test_another_reply_that_does_not_fit_is_a_failure_of_its_request() -> None:
    response = DrainedResponse(id=5, drained=dict.fromkeys(range(50), 4))
    size = len(encode_line(response))
    reply = decode_response(encode_reply(response, limit_bytes=100))

    assert reply == FailureResponse(id=5, error=f"the reply has {size} bytes, and a line has 100 at most")


def test_only_the_same_id_is_the_same_ledger() -> None:
    own, other = CountedLedger("a" * 32, "file:///new"), CountedLedger("b" * 32, "file:///old")

    assert wrong_ledger(own, CountedLedger("a" * 32, "s3://the-same/by-another-name")) is None
    reason = wrong_ledger(own, other)
    assert reason is not None
    assert all(part in reason for part in ("a" * 32, "b" * 32, "file:///new", "file:///old", "HEADGATE_LEDGER"))
    assert "file:///old was counted, a ledger with no id" in str(wrong_ledger(own, CountedLedger(url="file:///old")))
    assert wrong_ledger(CountedLedger(), CountedLedger()) is not None, "ledgers without an id cannot be compared"


def test_a_row_without_rates_is_read_as_one_whose_rates_are_unknown() -> None:
    row = msgspec.json.decode(msgspec.json.encode(ROW), type=Backlog)

    assert (row.stored_per_second, row.acknowledged_per_second, row.oldest_ms) == (None, None, None)
