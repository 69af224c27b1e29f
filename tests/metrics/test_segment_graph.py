"""Drawings of a topic's segments."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from headgate.model.layout import Layout
from headgate.protocol.messages import BucketRangeProgress, SegmentProgress
from metrics.segment_graph import BOX, MAX_DRAWN_SEGMENTS, ROW, WIDTH, bucket_range_bars, segment_graph
from tests.support.status_values import segment_descriptions


def drawing(layout, blocked=frozenset()):
    """Return (title → (kind, left, width, top)), and the number of lines."""
    root = ET.fromstring(segment_graph(segment_descriptions(layout), blocked))
    boxes = {}
    for group in root.iter("g"):
        rect = group.find("rect")
        boxes[int(group.find("title").text.split()[1].rstrip(":"))] = (
            group.get("class"),
            float(rect.get("x")),
            float(rect.get("width")),
            float(rect.get("y")),
        )
    return boxes, len(list(root.iter("line")))


def test_a_split_is_drawn_as_two_halves_below_their_parent():
    """The horizontal position is the range of hashes, the row is the generation."""
    boxes, lines = drawing(Layout.initial(1, 0).split(0, 10, 0), frozenset({2}))

    assert boxes == {
        0: ("sealed", 1.0, WIDTH - 2, 0),
        1: ("active", 1.0, WIDTH / 2 - 2, ROW),
        2: ("blocked", WIDTH / 2 + 1, WIDTH / 2 - 2, ROW),
    }
    assert lines == 2


def test_a_merge_is_drawn_below_its_lowest_parent():
    """With parents of different generations, the child is below both, with a line from each."""
    layout = Layout.initial(2, 0).split(0, 10, 0).merge(3, 1, {3: 1, 1: 1}, 0)
    boxes, lines = drawing(layout)

    assert boxes[4][3] == 2 * ROW
    assert boxes[1][3] == 0
    assert lines == 4


def test_a_pruned_parent_is_not_drawn():
    """Its children have no lines."""
    boxes, lines = drawing(Layout.initial(1, 0).split(0, 10, 0).prune([0]))

    assert {number: box[3] for number, box in boxes.items()} == {1: 0, 2: 0}
    assert lines == 0


def test_only_the_newest_segments_are_drawn():
    """The drawing is as high as its rows."""
    layout = Layout.initial(1, 0)
    for _ in range(MAX_DRAWN_SEGMENTS):
        newest = layout.active()[-1]
        if newest.first_hash == newest.last_hash or len(layout.active()) > 1:
            low, high = layout.active()
            layout = layout.merge(low.segment_id, high.segment_id, {low.segment_id: 0, high.segment_id: 0}, 0)
        else:
            layout = layout.split(newest.segment_id, 0, 0)
    boxes, _ = drawing(layout)
    root = ET.fromstring(segment_graph(segment_descriptions(layout)))

    assert sorted(boxes) == sorted(layout.segments)[-MAX_DRAWN_SEGMENTS:]
    assert int(root.get("height")) == max(box[3] for box in boxes.values()) + ROW
    assert ROW > BOX


@pytest.mark.parametrize(("segments", "labels"), [(2, ["0", "1"]), (64, [])], ids=["wide", "narrow"])
def test_a_box_has_a_label_if_it_fits(segments, labels):
    root = ET.fromstring(segment_graph(segment_descriptions(Layout.initial(segments, 0))))

    assert [text.text for text in root.iter("text")] == labels


def test_an_empty_layout_is_a_well_formed_drawing():
    assert ET.fromstring(segment_graph([])).get("height") == str(ROW)


def test_a_shared_segment_is_a_bar_with_a_box_per_bucket_range():
    """Widths and order are those of the buckets. A name that does not fit is in the title only."""
    ranges = [
        BucketRangeProgress(
            first_bucket=0, end_bucket=8, status="granted", acknowledged_offset=5, consumer="<ann>", generation=3
        ),
        BucketRangeProgress(
            first_bucket=8, end_bucket=9, status="revoking", acknowledged_offset=5, consumer="b" * 60, generation=4
        ),
        BucketRangeProgress(first_bucket=9, end_bucket=16, status="waiting", acknowledged_offset=2),
    ]
    whole = SegmentProgress(segment=0, status="granted", acknowledged_offset=0, next_offset=9)
    shared = SegmentProgress(segment=7, status="shared", acknowledged_offset=2, next_offset=9, bucket_ranges=ranges)
    root = ET.fromstring(bucket_range_bars([whole, shared]))
    boxes = [(g.get("class"), g.find("rect"), g.find("text"), g.find("title").text) for g in root.iter("g")]

    assert [each[0] for each in boxes] == ["active", "blocked", "sealed"]
    widths = [float(rect.get("width")) + 2 for _, rect, _, _ in boxes]
    assert [round(width / widths[1]) for width in widths] == [8, 1, 7]
    assert [None if text is None else text.text for _, _, text, _ in boxes] == ["<ann>", None, "waiting"]
    assert boxes[0][3] == "buckets 0-7 of segment 7: <ann>, granted, 5 acknowledged"
    assert "buckets 8 of segment 7: bbb" in boxes[1][3]
    assert root.get("height") == str(ROW)


def test_no_bars_are_drawn_without_shared_segments():
    assert bucket_range_bars([SegmentProgress(segment=0, status="granted", acknowledged_offset=0, next_offset=9)]) == ""
