"""Parsing and formatting of a topic's policy."""

import click
import pytest

from headgate import TopicPolicy
from headgate.cli.topics.topic_text import bytes_text, duration, max_age, max_bytes, policy_line


@pytest.mark.parametrize("text", ["30s", "15m", "12h", "7d"])
def test_a_duration_is_parsed_and_formatted_alike(text: str) -> None:
    assert duration(max_age(text)) == text


@pytest.mark.parametrize("text", ["0", "7", "500kB", "10GB", "3TB"])
def test_a_number_of_bytes_is_parsed_and_formatted_alike(text: str) -> None:
    assert bytes_text(max_bytes(text)) == text


def test_a_limit_that_no_ledger_can_hold_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="too large; none means no limit"):
        max_bytes("9999999TB")


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0s"), (1500, "1.5s"), (60_000, "1m"), (90_000, "90s"), (1_209_600_000, "14d")]
)
def test_a_duration_is_formatted_in_the_largest_unit_that_divides_it(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_a_policy_is_formatted_like_the_options_of_the_command() -> None:
    policy = TopicPolicy(auto_split=True, auto_merge=False, max_segments=8, max_age_ms=604_800_000, max_bytes=5000)

    assert policy_line(policy) == "policy: auto-split on, auto-merge off, max-segments 8, max-age 7d, max-bytes 5kB"
    policy = TopicPolicy(min_segments=2, max_age_ms=-1, max_bytes=-1, ignore_subscriptions=True)
    assert policy_line(policy) == "policy: ignore-subscriptions on, min-segments 2, max-age none, max-bytes none"
