"""Codes and tokens that only the daemons of one cluster can derive."""

import re

import pytest

from controller.leadership.session_secret import SessionSecret

DIGITS = "0123456789abcdef" * 4
SECRET = SessionSecret(DIGITS)
FIVE_MINUTES_MS = 300_000
NOW_MS = 1_700_000_100_000
"""A multiple of five minutes."""


def test_a_secret_has_256_random_bits() -> None:
    first, second = SessionSecret.new_digits(), SessionSecret.new_digits()

    assert first != second
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert SessionSecret(first).suffix("a") != SessionSecret(second).suffix("a")


@pytest.mark.parametrize("digits", ["", DIGITS[:-1], f"{DIGITS}0", DIGITS.upper(), f"{DIGITS[:-1]}x", f"{DIGITS}\n"])
def test_other_text_is_no_secret(digits: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        SessionSecret(digits)


def test_the_code_of_a_client_id_is_the_same_on_every_version() -> None:
    """A device session outlives the daemon that opened it: with another code, its messages would be lost."""
    assert ":b0ea4cf9e43c283430863ac99f9f2eb6" == SECRET.suffix("headgate/device-sessions/0")
    assert DIGITS not in repr(SECRET) + str(vars(SECRET))


def test_ids_have_codes_of_their_own() -> None:
    assert SECRET.suffix("a") != SECRET.suffix("b")


def test_a_token_is_the_same_on_every_version() -> None:
    """Two versions ask each other during an upgrade."""
    assert "peer.53d9f05d44a01717bb7e148d1e37d1202aeac823d73d9094af67801ca1c183a2" == SECRET.http_token("a", NOW_MS)


@pytest.mark.parametrize(
    ("elapsed_ms", "accepted"),
    [
        (-FIVE_MINUTES_MS - 1, False),
        (-FIVE_MINUTES_MS, True),
        (0, True),
        (2 * FIVE_MINUTES_MS - 1, True),
        (2 * FIVE_MINUTES_MS, False),
    ],
    ids=["far behind", "a clock that is behind", "at once", "later", "too late"],
)
def test_a_token_is_accepted_in_its_five_minutes_and_those_beside_them(elapsed_ms: int, accepted: bool) -> None:
    token = SECRET.http_token("a", NOW_MS)

    assert accepted == SECRET.accepts_http_token(token, "a", NOW_MS + elapsed_ms)


@pytest.mark.parametrize("token", ["", "peer.", "peer.é", SessionSecret(DIGITS[::-1]).http_token("a", NOW_MS)])
def test_a_token_that_was_not_made_with_the_secret_is_not_accepted(token: str) -> None:
    assert not SECRET.accepts_http_token(token, "a", NOW_MS)


def test_a_token_is_for_one_receiver() -> None:
    assert not SECRET.accepts_http_token(SECRET.http_token("a", NOW_MS), "b", NOW_MS)
