"""The drawing of a topic's segments."""

import click
import pytest

from headgate import TopicPolicy
from headgate.cli.topics.topic_text import bytes_text, draw_topic, duration, max_age, max_bytes, policy_line
from tests.support.fakes.cli_client import segment, topic


def test_splits_form_a_tree_and_a_merge_is_drawn_under_its_first_parent():
    drawn = draw_topic(
        topic(
            "orders",
            segment(0, 0, 0x7FFF, "sealed", children=[2, 3], next_offset=12_345, size_bytes=99),
            segment(1, 0x8000, 0xFFFF, "sealed", children=[4]),
            segment(2, 0, 0x3FFF, parents=[0]),
            segment(3, 0x4000, 0x7FFF, "sealed", parents=[0], children=[4]),
            segment(4, 0x4000, 0xFFFF, parents=[3, 1], size_bytes=12_345_678),
            subscriptions=("audit", "billing"),
        )
    )

    assert drawn == [
        "orders: 2 active, 3 sealed; shard 2, layout epoch 7",
        "",
        "segment  hashes     state   records     size",
        "0        0000-7fff  sealed    12345     99 B",
        "├─ 2     0000-3fff  active        0      0 B",
        "└─ 3     4000-7fff  sealed        0      0 B",
        "   └─ 4  4000-ffff  active        0  12.3 MB  merged from 3 and 1",
        "1        8000-ffff  sealed        0      0 B",
        "└─ → 4",
        "",
        "0000 ├───────2───────├───────────────────────4───────────────────────┤ ffff",
        "",
        "subscriptions: audit, billing",
    ]


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
