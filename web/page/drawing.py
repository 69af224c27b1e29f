"""Draws segments over key hashes and time, as SVG. Pure.

Downwards: the range of key hashes. To the right: time, up to now; the columns between two changes of
the layout are compressed, so that old ones leave space for the present. A split shows as two boxes to
the right of one, a merge as one to the right of two. The bar at the bottom of a box is what the
subscription has acknowledged. Text that does not fit into a box is in its title.

Only the newest `MAX_DRAWN_SEGMENTS` are drawn. Each drawing exists in two widths, of which the style sheet shows one.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.layout import KEY_BUCKETS
from headgate.views.subscriptions import BucketRangeAssignment, SegmentAssignment
from headgate.views.topics import SegmentInfo
from web.page.markup import Html, count, duration, element, plural

MAX_DRAWN_SEGMENTS: Final = 400
WIDE, NARROW = 940, 356
_HASHES: Final = 65_536
_LEFT: Final = 38
_BOTTOM: Final = 18
_PRESENT_SHARE: Final = 0.4
"""The last column has at least this share of the width, because its boxes have the longest labels."""
_LETTER: Final = 6.6
_LINE: Final = 15
_ROW: Final = 36
_MIN_HEIGHT, _MAX_HEIGHT = 96, 576


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    segment: SegmentInfo
    status: str
    """CSS class: ``active``, ``waiting``, ``draining``, ``blocked``, ``drained`` or ``sealed``."""
    lines: tuple[str, ...]
    title: str
    acknowledged: float | None = None
    """Share of its records that is acknowledged, 0 to 1."""


def drawing(boxes: Sequence[Box], now_ms: int, name: str) -> Html:
    """Return both widths of the drawing; ``name`` is what a screen reader says."""
    newest = sorted(boxes, key=lambda each: each.segment.segment)[-MAX_DRAWN_SEGMENTS:]
    return element(
        "div",
        *(_svg(newest, now_ms, name, width, css) for width, css in ((WIDE, "wide"), (NARROW, "narrow"))),
        class_="drawing",
    )


def columns(times_ms: Sequence[int], now_ms: int) -> list[float]:
    """Return where each of ``times_ms``, ascending, is on the axis from 0 to 1; ``now_ms`` is at 1.

    The width of a column grows with the logarithm of its duration.
    """
    if not times_ms:
        return []
    ends = [*times_ms[1:], max(now_ms, times_ms[-1])]
    weights = [1 + math.log10(1 + max(0, end - begin) / 1000) for begin, end in zip(times_ms, ends, strict=True)]
    past = sum(weights[:-1])
    weights[-1] = max(weights[-1], past * _PRESENT_SHARE / (1 - _PRESENT_SHARE))
    total, at, found = sum(weights), 0.0, []
    for weight in weights:
        found.append(at / total)
        at += weight
    return found


def _svg(boxes: Sequence[Box], now_ms: int, name: str, width: int, css_class: str) -> Html:
    segments = [each.segment for each in boxes]
    smallest = min((each.last_hash + 1 - each.first_hash for each in segments), default=_HASHES)
    height = max(_MIN_HEIGHT, min(_MAX_HEIGHT, _ROW * _HASHES // max(1, smallest)))
    times = sorted(
        {at_ms for each in segments for at_ms in (each.created_at_ms, each.sealed_at_ms or each.created_at_ms)}
    )
    starts = columns(times, now_ms)

    def x(at_ms: int | None) -> float:
        share = 1.0 if at_ms is None else starts[bisect_left(times, at_ms)]
        return _LEFT + share * (width - _LEFT - 1)

    parts = [
        _box(box, x(each.created_at_ms), x(each.sealed_at_ms), each.first_hash / _HASHES * height, height)
        for box, each in zip(boxes, segments, strict=True)
    ]
    return element(
        "svg",
        element("title", name),
        element("desc", "; ".join(each.title for each in boxes[-40:])),
        _hash_axis(height),
        *parts,
        _time_axis(times, [x(each) for each in times], now_ms, width, height),
        class_=css_class,
        viewBox=f"0 0 {width} {height + _BOTTOM}",
        role="img",
    )


def _box(box: Box, left: float, right: float, top: float, total_height: int) -> Html:
    height = (box.segment.last_hash + 1 - box.segment.first_hash) / _HASHES * total_height
    width = max(right - left - 2, 2.0)
    fitting = max(0, int(width / _LETTER) - 1)
    shown = [_cut(line, fitting) for line in box.lines if line][: int((height - 3) // _LINE)]
    bar = None
    if box.acknowledged is not None and height >= 6:  # noqa: PLR2004
        bar = _rect(left + 1, top + height - 5, width * min(1.0, box.acknowledged), 3, "acknowledged")
    return element(
        "g",
        element("title", box.title),
        _rect(left + 1, top + 1, width, max(height - 2, 1.0), "box"),
        bar,
        *(
            _text(line, left + 7, top + 14 + number * _LINE, "first" if number == 0 else None)
            for number, line in enumerate(shown)
            if line
        ),
        class_=box.status,
    )


def _text(line: str, x: float, y: float, css_class: str | None) -> Html:
    return element("text", line, x=f"{x:.1f}", y=f"{y:.1f}", class_=css_class)


def _rect(x: float, y: float, width: float, height: float, css_class: str) -> Html:
    return element(
        "rect", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=f"{height:.1f}", rx=3, class_=css_class
    )


def _cut(line: str, letters: int) -> str:
    if len(line) <= letters:
        return line
    return line[: letters - 1] + "…" if letters > 2 else ""  # noqa: PLR2004


def _hash_axis(height: int) -> Html:
    labels = [("0000", 10.0), ("8000", height / 2 + 4), ("ffff", float(height))]
    return element(
        "g", *(element("text", label, x=2, y=f"{y:.1f}") for label, y in labels), class_="axis", aria_hidden="true"
    )


def _time_axis(times: Sequence[int], places: Sequence[float], now_ms: int, width: int, height: int) -> Html:
    """Return the ages of the changes, without those that would overlap a later one."""
    y = height + 13
    labels = [element("text", "now", x=width - 2, y=y, class_="end")]
    free = width - 40.0
    for at_ms, place in zip(reversed(times), reversed(places), strict=True):
        text = f"{duration(max(0, now_ms - at_ms) / 1000)} ago"
        if place + len(text) * _LETTER < free:
            labels.append(element("text", text, x=f"{place + 1:.1f}", y=y))
            free = place - 6
    return element("g", *labels, class_="axis", aria_hidden="true")


MAX_BARS: Final = 50
"""Shared segments that are drawn; the API has all."""
_FIELD, _HEIGHT = 40, 34


def bucket_bars(segments: Sequence[SegmentAssignment]) -> Html | None:
    """Draw which consumers share each segment: its key buckets as a bar, one field for each range.

    Text that does not fit into a field is in its title, and in the list below for readers that see no drawing.
    """
    shared = [each for each in segments if each.bucket_ranges and each.status != "drained"]
    if not shared:
        return None
    more = len(shared) - MAX_BARS
    return element(
        "div",
        element("p", f"Segments whose {KEY_BUCKETS} key buckets several consumers share:"),
        *(_bar(each) for each in shared[:MAX_BARS]),
        element("p", f"{count(more)} more; the API lists all.") if more > 0 else None,
        class_="buckets",
    )


def _bar(segment: SegmentAssignment) -> Html:
    texts = [_spoken(each) for each in segment.bucket_ranges]
    return element(
        "div",
        element(
            "p", f"Segment {segment.segment}", element("small", f" {plural(len(texts), 'range')}"), class_="caption"
        ),
        element(
            "svg",
            element("title", f"Key buckets of segment {segment.segment}: {'; '.join(texts)}"),
            *_fields(segment.bucket_ranges),
            viewBox=f"0 0 {_FIELD * KEY_BUCKETS} {_HEIGHT}",
            role="img",
        ),
        element("ul", *(element("li", text) for text in texts), class_="ranges"),
        class_="chart",
    )


def _fields(ranges: Iterable[BucketRangeAssignment]) -> Iterable[Html]:
    for each in ranges:
        x, width = each.first_bucket * _FIELD, (each.end_bucket - each.first_bucket) * _FIELD
        label = f"{_buckets(each)} · {each.consumer or each.status}"
        fitting = int((width - 12) / _LETTER)
        yield element(
            "g",
            element("title", _spoken(each)),
            element("rect", x=x + 1, y=1, width=width - 2, height=_HEIGHT - 2, rx=3, class_="box"),
            element("text", label if len(label) <= fitting else f"{label[: fitting - 1]}…", x=x + 8, y=21),
            class_="active" if each.consumer else "waiting",
        )


def _buckets(each: BucketRangeAssignment) -> str:
    last = each.end_bucket - 1
    return str(last) if last == each.first_bucket else f"{each.first_bucket}-{last}"


def _spoken(each: BucketRangeAssignment) -> str:
    behind = ""
    if each.unacknowledged is not None:
        behind = f", {count(each.unacknowledged, estimated=each.estimated)} behind"
    noun = "bucket" if each.end_bucket - each.first_bucket == 1 else "buckets"
    return f"{noun} {_buckets(each)}: {each.consumer or 'no consumer'}, {each.status}{behind}"
