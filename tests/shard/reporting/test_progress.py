"""The backlog that every report shows. Status and shared segments: tests/coordinator/test_coordinator_sharing.py."""

import pytest

from headgate.model import entries as e
from headgate.model.layout import BucketRange, SegmentSlice
from headgate.protocol.backlog import RecordCount
from shard.reporting.progress import WINDOW_SECONDS, DrainRate, unacknowledged
from shard.state.progress import Progress
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from tests.support.worlds.command_shard import imported_topic


def stored() -> Topic:
    """A topic with one segment of 20 000 records."""
    topic = imported_topic(e.ImportedSegment(segment=0, label="a", end_offset=20_000))
    topic.external = None
    return topic


def external(positions: e.Positions, end_offset: int | None = 500) -> Topic:
    return imported_topic(e.ImportedSegment(segment=0, label="a", end_offset=end_offset), positions=positions)


def subscription(kind: e.SubscriptionType | None, position: int = 0) -> Subscription:
    return Subscription(1, "t", 2, "s", kind, "strict", progress=Progress({0: position}))


STREAM, CHECKPOINT = e.SubscriptionType.STREAM, e.SubscriptionType.CHECKPOINT


@pytest.mark.parametrize(
    ("topic", "kind", "position", "expected"),
    [
        pytest.param(stored(), STREAM, 15_589, RecordCount(4411), id="stored"),
        pytest.param(stored(), CHECKPOINT, 0, None, id="CHECKPOINT"),
        pytest.param(stored(), None, 0, None, id="type unknown"),
        pytest.param(external("offsets"), STREAM, 499, None, id="before the end of a source"),
        pytest.param(external("offsets"), STREAM, 500, RecordCount(0), id="at the end of a source"),
        pytest.param(external("offsets", None), STREAM, 500, None, id="active segment of a source"),
        pytest.param(external("opaque"), STREAM, 0, None, id="opaque and unread"),
        pytest.param(external("opaque"), STREAM, 1, RecordCount(0), id="opaque and read"),
    ],
)
def test_only_what_the_leader_can_count_is_a_number(
    topic: Topic, kind: e.SubscriptionType | None, position: int, expected: RecordCount | None
) -> None:
    assert unacknowledged(subscription(kind, position), topic, 0) == expected


@pytest.mark.parametrize("topic", [external("offsets"), external("opaque")], ids=["offsets", "opaque"])
def test_nothing_is_left_in_a_drained_segment(topic: Topic) -> None:
    """Its tables may show that it is drained while headgate knows no acknowledgement."""
    drained = subscription(STREAM)
    drained.drained.add(0)

    assert unacknowledged(drained, topic, 0) == RecordCount(0)


@pytest.mark.parametrize(("segment_slice", "expected"), [(0, (16, False)), (BucketRange(0, 4, 8), (4, True))])
def test_a_part_of_a_segment_is_estimated(segment_slice: SegmentSlice, expected: tuple[int, bool]) -> None:
    assert unacknowledged(subscription(STREAM, 19_984), stored(), segment_slice) == expected


Sample = tuple[float, dict[int, int]]
"""Time, and segment → its acknowledged records."""
SAMPLES: dict[str, tuple[list[Sample], dict[int, float]]] = {
    "over the window": ([(float(at), {0: at * 10, 1: 7}) for at in range(0, 100, 2)], {0: 10.0, 1: 0.0}),
    "nothing before the window": (
        [(0.0, {0: 0}), *((float(at), {0: 1000 if at < 100 else 900 + at}) for at in range(2, 200, 2))],
        {0: 1.0},
    ),
    "samples too close": ([(0.0, {0: 0}), (1.75, {0: 50})], {}),
    "the later of samples too close": ([(0.0, {0: 0}), (1.75, {0: 50}), (2.0, {0: 50})], {0: 25.0}),
    "no sample too close to the last one": ([(0.0, {0: 0}), (2.0, {0: 10}), (3.0, {0: 100})], {0: 5.0}),
    "a slow one": ([(100.0, {0: 5}), (102.0, {0: 6})], {0: 0.5}),
    "a new window after a seek": ([(0.0, {0: 100, 1: 0}), (20.0, {0: 5, 1: 0}), (30.0, {0: 10})], {0: 0.5}),
    "a fall after a rise": ([(0.0, {0: 0}), (10.0, {0: 100}), (20.0, {0: 50})], {}),
    "after a long pause": ([(0.0, {0: 0}), (2 * WINDOW_SECONDS, {0: 9})], {}),
    "nothing read before": (
        [*((float(at), {0: 5}) for at in range(0, 30, 2)), (30.0, {0: 9}), (32.0, {0: 13})],
        {0: 2.0},
    ),
    "of thirty seconds": ([(100.0, {0: 0}), (130.0, {0: 60})], {0: 2.0}),
    "of no more": ([(100.0, {0: 0}), (130.0, {0: 60}), (130.5, {0: 60})], {}),
}


@pytest.mark.parametrize(("samples", "rates"), SAMPLES.values(), ids=SAMPLES.keys())
def test_a_rate_follows_from_the_samples_of_its_window(samples: list[Sample], rates: dict[int, float]):
    rate = DrainRate()
    for at, acknowledged in samples:
        rate.add_sample(at, acknowledged)

    assert rate.rates() == rates


def test_a_sample_is_due_every_two_seconds():
    rate = DrainRate()
    assert rate.is_due(0.0)
    rate.add_sample(0.0, {0: 0})

    assert not rate.is_due(1.75)
    assert rate.is_due(2.0)
