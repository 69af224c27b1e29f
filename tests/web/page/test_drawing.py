"""Boxes over key hashes and time."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.status_documents import HOSTILE, NOW_MS
from web.page.drawing import MAX_DRAWN_SEGMENTS, WIDE, Box, columns, drawing


def box(number, first=0, last=65535, *, created=NOW_MS - 60_000, sealed=None, status="active", **fields):
    values = {"lines": (f"{number} · ada", "5 behind"), "title": f"segment {number}", "acknowledged": 0.5}
    return Box(
        segment=number,
        first_hash=first,
        last_hash=last,
        created_at_ms=created,
        sealed_at_ms=sealed,
        status=status,
        **values | fields,
    )


def svg(boxes, css_class="wide"):
    (found,) = (each for each in ET.fromstring(drawing(boxes, NOW_MS, "name")) if each.get("class") == css_class)
    return found


def boxes_of(found):
    """Return segment → (left, right, top, bottom)."""
    rects = {}
    for group in found.iter("g"):
        title = group.find("title")
        if title is not None:
            rect = group.find("rect")
            x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            rects[title.text] = (x, x + width, y, y + height)
    return rects


def test_children_are_to_the_right_of_their_parent_and_divide_its_hashes():
    split = NOW_MS - 30_000
    found = boxes_of(
        svg(
            [
                box(0, 0, 32767, sealed=split, status="draining"),
                box(1, 32768, 65535),
                box(2, 0, 16383, created=split, status="blocked"),
                box(3, 16384, 32767, created=split, status="blocked"),
            ]
        )
    )
    parent, other, upper, lower = (found[f"segment {n}"] for n in range(4))

    assert parent[1] <= upper[0] == lower[0]
    assert upper[1] == lower[1] == other[1] == pytest.approx(WIDE - 2, abs=1)
    assert parent[2] == upper[2] < upper[3] < lower[2] < lower[3] == parent[3] < other[2]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50, unique=True))
def test_columns_rise_from_0_and_leave_space_for_the_present(times):
    found = columns(sorted(times), max(times) + 1000)

    assert found[0] == 0
    assert found == sorted(set(found))
    assert len(times) == 1 or found[-1] <= 0.6 + 1e-9


def test_the_bar_at_the_bottom_is_the_acknowledged_share():
    found = svg([box(0, acknowledged=0.25)])
    width, done = (float(rect.get("width")) for rect in found.iter("rect"))

    assert done == pytest.approx(width / 4, abs=0.1)
    assert [rect.get("class") for rect in svg([box(0, acknowledged=None)]).iter("rect")] == ["box"]


def test_text_that_does_not_fit_is_cut_and_is_in_the_title_and_the_description():
    found = svg([box(0, lines=("x" * 300,), title="all of it")])
    label = found.find("g[@class='active']/text").text

    assert label.endswith("…")
    assert len(label) < 150
    assert (found.find("title").text, found.find("desc").text) == ("name", "all of it")


def test_hostile_text_stays_text():
    found = svg([box(0, lines=(HOSTILE,), title=HOSTILE)])

    assert found.find("g[@class='active']/title").text == HOSTILE
    assert list(found.iter("script")) == []


def test_the_newest_segments_are_drawn_in_two_widths():
    many = [box(number) for number in range(MAX_DRAWN_SEGMENTS + 5)]

    for css_class in ("wide", "narrow"):
        assert list(boxes_of(svg(many, css_class))) == [f"segment {n}" for n in range(5, MAX_DRAWN_SEGMENTS + 5)]


def test_without_segments_the_drawing_is_empty():
    assert boxes_of(svg([])) == {}


def test_ages_on_the_axis_do_not_overlap():
    close = [box(n, n * 100, n * 100 + 99, created=NOW_MS - 60_000 + n) for n in range(100)]
    labels = [text.text for text in svg(close).find("g[@class='axis'][last()]")]

    assert labels[0] == "now"
    assert len(labels) < 20
