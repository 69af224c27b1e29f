"""The deadline of a request, by the age of the leader's term."""

import pytest

from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import DeleteTopic, Request
from shard.requests.verdicts import judge_deadline

LIMIT_MS = 500


def request(max_term_age_ms: int | None, leader_epoch: int | None = 1) -> Request:
    body = DeleteTopic(topic="orders", token="t")
    term = {"leader_epoch": leader_epoch, "max_term_age_ms": max_term_age_ms}
    return Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="c", body=body, **term)


@pytest.mark.parametrize(
    ("limit_ms", "age_ms", "expired"),
    [(None, 10**9, False), (LIMIT_MS, LIMIT_MS - 1, False), (LIMIT_MS, LIMIT_MS, True), (0, 0, True)],
    ids=["no deadline", "before it", "at it", "a question for the age"],
)
def test_a_request_is_refused_from_its_deadline_on(limit_ms: int | None, age_ms: int, expired: bool) -> None:
    refusal = judge_deadline(request(limit_ms), age_ms)

    assert (None if refusal is None else (refusal.verdict, refusal.term_age_ms)) == (
        ("expired", age_ms) if expired else None
    )


def test_a_deadline_without_its_term_is_invalid() -> None:
    refusal = judge_deadline(request(LIMIT_MS, leader_epoch=None), 0)

    assert "invalid" == refusal.verdict
