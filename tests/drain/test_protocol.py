"""The limits of a line, in both directions."""

import msgspec
import pytest

from drain import protocol

ROW = protocol.Backlog(topic_id=1, subscription_id=2, segment=0, sealed=True, records=0, size_bytes=0)
REPORT = protocol.BacklogResponse(id=5, rows=[ROW] * 4, watermark=9, as_of_ms=1)


@pytest.mark.parametrize("response", [REPORT, protocol.DrainedResponse(id=5, drained=dict.fromkeys(range(50), 4))])
def test_a_reply_that_fits_is_sent_unchanged(response: protocol.BacklogResponse | protocol.DrainedResponse) -> None:
    line = protocol.encode_line(response)

    assert protocol.encode_reply(response, limit_bytes=len(line)) == line


def test_a_report_that_does_not_fit_says_that() -> None:
    size = len(protocol.encode_line(REPORT))
    reply = protocol.decode_response(protocol.encode_reply(REPORT, limit_bytes=size - 1))

    reason = f"4 backlogs are too many to report: the reply has {size} bytes, and a line has {size - 1} at most"
    assert reply == protocol.FailureResponse(id=5, error=reason)


def test_another_reply_that_does_not_fit_is_a_failure_of_its_request() -> None:
    response = protocol.DrainedResponse(id=5, drained=dict.fromkeys(range(50), 4))
    size = len(protocol.encode_line(response))
    reply = protocol.decode_response(protocol.encode_reply(response, limit_bytes=100))

    assert reply == protocol.FailureResponse(id=5, error=f"the reply has {size} bytes, and a line has 100 at most")


def test_only_the_same_id_is_the_same_ledger() -> None:
    own, other = protocol.CountedLedger("a" * 32, "file:///new"), protocol.CountedLedger("b" * 32, "file:///old")

    assert protocol.wrong_ledger(own, protocol.CountedLedger("a" * 32, "s3://the-same/by-another-name")) is None
    reason = protocol.wrong_ledger(own, other)
    assert all(part in reason for part in ("a" * 32, "b" * 32, "file:///new", "file:///old", "HEADGATE_LEDGER"))
    assert "file:///old was counted, a ledger with no id" in str(
        protocol.wrong_ledger(own, protocol.CountedLedger(url="file:///old"))
    )
    assert "mount it" in str(protocol.wrong_ledger(own, protocol.CountedLedger(url=own.url)))
    assert protocol.wrong_ledger(protocol.CountedLedger(), protocol.CountedLedger()) is not None, "both have no id"


def test_a_row_without_rates_is_read_as_one_whose_rates_are_unknown() -> None:
    row = msgspec.json.decode(msgspec.json.encode(ROW), type=protocol.Backlog)

    assert (row.stored_per_second, row.acknowledged_per_second, row.oldest_ms) == (None, None, None)
