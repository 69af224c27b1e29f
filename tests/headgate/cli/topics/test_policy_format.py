"""Parsing and formatting of a topic's policy."""

import pytest

from headgate import TopicPolicy
from headgate.cli.topics.policy_format import duration, policy_line, retention


@pytest.mark.parametrize("text", ["30s", "15m", "12h", "7d"])
def test_a_duration_is_parsed_and_formatted_alike(text: str) -> None:
    assert duration(retention(text)) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0s"), (1500, "1.5s"), (60_000, "1m"), (90_000, "90s"), (1_209_600_000, "14d")]
)
def test_a_duration_is_formatted_in_the_largest_unit_that_divides_it(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_a_policy_is_formatted_like_the_options_of_the_command() -> None:
    policy = TopicPolicy(auto_split=True, auto_merge=False, max_segments=8, retention_ms=604_800_000)

    assert policy_line(policy) == "policy: auto-split on, auto-merge off, max-segments 8, retention 7d"
    assert policy_line(TopicPolicy(min_segments=2, retention_ms=-1)) == "policy: min-segments 2, retention none"
