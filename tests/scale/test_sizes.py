"""How large a trial is, and how its parts are spread."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ConfigError
from scale.sizes import FULL, Sizes, planned_sizes, readable_segments, segments_of, share, topic_of


def test_a_scale_multiplies_every_size() -> None:
    assert FULL == planned_sizes(1, {})
    half = planned_sizes(0.5, {})
    assert {name: size // 2 for name, size in asdict(FULL).items()} == asdict(half)


def test_a_small_scale_leaves_what_every_stage_needs() -> None:
    least = planned_sizes(0.001, {})
    assert (2, 2, 1, 100) == (least.shards, least.daemons, least.topics, least.segments)


def test_a_given_size_is_taken_as_it_is() -> None:
    assert Sizes(shards=7, daemons=2, topics=10, segments=1000, consumers=0, producers=10_000) == planned_sizes(
        0.01, {"shards": 7, "consumers": 0, "topics": None}
    )


@pytest.mark.parametrize(
    ("given_sizes", "text"),
    [
        ({"shards": 2, "daemons": 3}, "--shards 2 is below --daemons 3"),
        ({"topics": 10, "segments": 9}, "--segments 9 is below --topics 10"),
        ({"topics": 1, "segments": 1025}, "--segments 1025 is above 1024 for each of --topics 1"),
        ({"topics": 1, "consumers": 1001, "segments": 1}, "--consumers 1001 is above 1000 for each of --topics 1"),
    ],
    ids=["fewer shards than daemons", "fewer segments than topics", "too many segments", "too many consumers"],
)
def test_sizes_that_contradict_each_other_are_refused(given_sizes: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        planned_sizes(0.01, given_sizes)


@given(total=st.integers(0, 10_000), parts=st.integers(1, 50))
def test_shares_cover_everything_once_and_differ_by_at_most_one(total: int, parts: int) -> None:
    shares = [share(total, parts, number) for number in range(parts)]
    assert list(range(total)) == [each for one in shares for each in one]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_segments_and_consumers_are_spread_over_the_topics() -> None:
    sizes = Sizes(topics=3, segments=10, consumers=7)
    assert 10 == sum(segments_of(sizes, number) for number in range(3))
    readers = [topic_of(sizes, consumer) for consumer in range(7)]
    assert readers == sorted(readers), "those of one topic follow each other"
    assert {2, 3} == {readers.count(topic) for topic in range(3)}


def test_segments_of_topics_without_a_consumer_are_not_readable() -> None:
    assert 10 + 2 == readable_segments(Sizes(topics=3, segments=10, consumers=7), splits=2)
    assert 3 + 3 + 1 == readable_segments(Sizes(topics=4, segments=12, consumers=2), splits=2)
    assert 0 == readable_segments(Sizes(topics=3, segments=10, consumers=0), splits=2)


def test_heartbeats_are_rarer_with_many_consumers() -> None:
    assert (5.0, 60.0) == (Sizes(consumers=100).heartbeat_seconds, Sizes(consumers=100).grace_seconds)
    assert (40.0, 160.0) == (FULL.heartbeat_seconds, FULL.grace_seconds)
