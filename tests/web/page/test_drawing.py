"""Boxes over key hashes and time."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.support.samples.status_documents import HOSTILE, NOW_MS
from web.page.drawing import Box, drawing


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


def test_without_segments_the_drawing_is_empty():
    assert boxes_of(svg([])) == {}
