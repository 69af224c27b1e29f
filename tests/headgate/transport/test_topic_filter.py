"""Filter matching, by the examples of the MQTT 3.1.1 standard, section 4.7, and our own topics."""

import pytest

from headgate.transport.topic_filter import filter_matches, has_wildcard


@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        ("a", "a"),
        ("#", "a/b"),
        ("a/#", "a"),
        ("a/#", "a/b"),
        ("a/#", "a/b/c"),
        ("+", "a"),
        ("a/+", "a/"),
        ("a/+/c", "a/b/c"),
        ("+/+", "/a"),
        ("/+", "/a"),
        ("+/b/#", "a/b/c"),
        ("$SYS/#", "$SYS/x"),
        ("$SYS/+", "$SYS/x"),
    ],
)
def test_a_filter_takes_in(topic_filter: str, topic: str) -> None:
    assert filter_matches(topic_filter, topic)


@pytest.mark.parametrize(
    ("topic_filter", "topic"),
    [
        ("a", "a/b"),
        ("a/b", "a"),
        ("a/+", "a"),
        ("a/+", "a/b/c"),
        ("+", "/a"),
        ("a/+/c", "a/b/d"),
        ("a/#", "b"),
        ("a/+/#", "a"),
        ("#", "$SYS/x"),
        ("+/x", "$SYS/x"),
    ],
)
def test_a_filter_leaves_out(topic_filter: str, topic: str) -> None:
    assert not filter_matches(topic_filter, topic)


def test_wildcards_are_noticed() -> None:
    assert [has_wildcard(name) for name in ("a/b", "a/+", "#")] == [False, True, True]
