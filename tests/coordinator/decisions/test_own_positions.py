"""Positions that CHECKPOINT consumers store themselves, rule by rule."""

from __future__ import annotations

import pytest

from controller.state.shard_state import ShardState
from controller.state.topic import Topic
from coordinator.decisions.own_positions import own_positions_error
from headgate.model import entries as e
from tests.support.worlds.imported_topic import imported_topic

CAUSE = "the ledger was restored from an older backup, or the topic was created again"


def topic() -> Topic:
    """Segments 1 and 2 replaced segment 0, which is pruned; segment 1 ends at 5, segment 2 at 0."""
    state = ShardState(0)
    entries = [
        e.TopicCreated(topic_id=1, topic="orders", segments=1, token="x"),
        e.SegmentSplit(topic_id=1, segment=0, end_offset=0, token=""),
        e.SegmentsPruned(topic_id=1, segments=[0]),
    ]
    state.apply_all(entries, chunk=1, at_ms=0)
    found = state.topics["orders"]
    found.tails[1].next_offset = 5
    return found


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], None),
        ([(1, 0), (2, 0)], None),
        ([(1, 5)], None),
        ([(1, 6)], f"segment 1 of topic 'orders' ends at 5, before position 6: {CAUSE}; start at 5 or below"),
        ([(2, 9), (1, 6)], f"segment 1 of topic 'orders' ends at 5, before position 6: {CAUSE}; start at 5 or below"),
        ([(2, 1)], f"segment 2 of topic 'orders' ends at 0, before position 1: {CAUSE}; start at 0 or below"),
        ([(0, 900)], None),
        ([(3, 0)], f"topic 'orders' never had segment 3, of position 0: {CAUSE}; start without this position"),
    ],
    ids=["none", "beginning", "end", "beyond", "the first of two", "empty segment", "pruned", "never existed"],
)
def test_a_position_exists_or_is_refused_with_the_end(positions, expected):
    assert expected == own_positions_error(topic(), positions)


def test_positions_of_an_external_topic_are_not_judged():
    external = imported_topic(e.ImportedSegment(segment=0, label="a"), positions="offsets")
    assert own_positions_error(external, [(0, 9), (7, 1)]) is None
