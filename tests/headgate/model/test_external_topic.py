"""Segments of external topics on the ring."""

import pytest

from headgate.model import entries as e
from headgate.model.external_topic import ExternalTopic, imported_segments, scale_to_ring
from headgate.model.layout import Segment


@pytest.mark.parametrize(
    ("hashes", "bits", "expected"),
    [
        ((0, 99), 16, (0, 99)),
        ((0, 2**127 - 1), 128, (0, 32_767)),
        ((2**127, 2**128 - 1), 128, (32_768, 65_535)),
        ((1, 1), 1, (32_768, 65_535)),
        ((5, 5), 128, (0, 0)),
    ],
    ids=["as many bits", "lower half", "upper half", "few bits", "one of very many"],
)
def test_a_range_is_scaled_to_the_ring(hashes: tuple[int, int], bits: int, expected: tuple[int, int]) -> None:
    assert expected == scale_to_ring(hashes, bits)


def test_a_segment_without_hashes_has_the_whole_ring() -> None:
    (segment,) = imported_segments([e.ImportedSegment(segment=0, label="a")], 0, 7)

    assert (0, 65_535) == (segment.first_hash, segment.last_hash)


def test_a_pruned_segment_leaves_its_label_behind_and_no_range() -> None:
    segments = [e.ImportedSegment(segment=n, label=f"s{n}", hashes=("0", "9")) for n in range(2)]
    topic = ExternalTopic("kinesis", 128, "opaque")
    topic.add(segments)
    topic.prune(Segment(0, 0, 65_535, 0, label="s0"))

    assert ({1}, {"s0"}) == (set(topic.hashes), topic.pruned)
