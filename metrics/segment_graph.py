"""Draws a topic's segments, and the bucket ranges of shared segments, as SVG. Pure.

Horizontally: the range of key hashes. Vertically: the generation, so a split shows as two boxes
below their parent, a merge as one below two. A shared segment is a bar over its key buckets with
one box per bucket range. Text that does not fit into a box is in its title. Only the newest
`MAX_DRAWN_SEGMENTS` segments are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from headgate.model.bucket_ranges import BucketRange
from headgate.model.hashing import KEY_BUCKETS
from headgate.protocol.messages import BucketRangeProgress, SegmentDescription, SegmentProgress

MAX_DRAWN_SEGMENTS = 400
WIDTH = 960
ROW = 46
BOX = 28
_HASHES = 65_536
_LABEL_WIDTH = 26
"""Narrower boxes have no label."""
_LETTER_WIDTH = 7
_BAR_LEFT = 100
_BAR_WIDTH = WIDTH - _BAR_LEFT
_BUCKET_RANGE_CLASSES = {"revoking": "blocked", "waiting": "sealed"}
"""Status of a bucket range → CSS class; other statuses look like an active segment."""


def segment_graph(segments: Sequence[SegmentDescription], blocked: frozenset[int] = frozenset()) -> str:
    """Return ``<svg>…</svg>``; ``blocked``: segments that are blocked for at least one subscription."""
    drawn = {each.segment: each for each in sorted(segments, key=lambda each: each.segment)[-MAX_DRAWN_SEGMENTS:]}
    rows = _rows(drawn)
    parts: list[str] = []
    for segment in drawn.values():
        parts += [_line(drawn[parent], segment, rows) for parent in segment.parents if parent in drawn]
    parts += [_segment_box(segment, rows, blocked) for segment in drawn.values()]
    return _svg(max(rows.values(), default=0) + 1, f"{len(drawn)} segments over the range of key hashes", parts)


def _rows(drawn: Mapping[int, SegmentDescription]) -> dict[int, int]:
    """Return the row of each segment: one below its lowest parent. Parents have lower ids than children."""
    rows: dict[int, int] = {}
    for number in sorted(drawn):
        rows[number] = 1 + max((rows[parent] for parent in drawn[number].parents if parent in rows), default=-1)
    return rows


def _span(segment: SegmentDescription) -> tuple[float, float]:
    return segment.first_hash / _HASHES * WIDTH, (segment.last_hash + 1) / _HASHES * WIDTH


def _line(parent: SegmentDescription, child: SegmentDescription, rows: Mapping[int, int]) -> str:
    (left, right), (child_left, child_right) = _span(parent), _span(child)
    return (
        f'<line x1="{(left + right) / 2:.1f}" y1="{rows[parent.segment] * ROW + BOX}" '
        f'x2="{(child_left + child_right) / 2:.1f}" y2="{rows[child.segment] * ROW}"/>'
    )


def _segment_box(segment: SegmentDescription, rows: Mapping[int, int], blocked: frozenset[int]) -> str:
    left, right = _span(segment)
    state = "blocked" if segment.segment in blocked else segment.state
    content = f"{segment.next_offset} records" if segment.label is None else f"source segment {segment.label}"
    hashes = f"hashes {segment.first_hash:04x}-{segment.last_hash:04x}"
    title = f"segment {segment.segment}: {hashes}, {segment.state}, {content}"
    label = str(segment.segment) if right - left >= _LABEL_WIDTH else ""
    return _box(state, title, left, right - left, rows[segment.segment] * ROW, label)


def bucket_range_bars(segments: Sequence[SegmentProgress]) -> str:
    """Return ``<svg>…</svg>`` with a bar per shared segment, at most `MAX_DRAWN_SEGMENTS`; empty if none is shared."""
    shared = [each for each in segments if each.bucket_ranges][:MAX_DRAWN_SEGMENTS]
    if not shared:
        return ""
    parts: list[str] = []
    for row, segment in enumerate(shared):
        middle = row * ROW + BOX / 2 + 5
        parts.append(f'<text x="{_BAR_LEFT / 2}" y="{middle:.1f}">segment {segment.segment}</text>')
        parts += [_bucket_range_bar(segment.segment, each, row * ROW) for each in segment.bucket_ranges]
    return _svg(len(shared), f"consumers of the key buckets of {len(shared)} segments", parts)


def _bucket_range_bar(segment: int, progress: BucketRangeProgress, top: int) -> str:
    left = _BAR_LEFT + progress.first_bucket * _BAR_WIDTH / KEY_BUCKETS
    width = (progress.end_bucket - progress.first_bucket) * _BAR_WIDTH / KEY_BUCKETS
    buckets = BucketRange(segment, progress.first_bucket, progress.end_bucket).buckets
    holder = progress.consumer or progress.status
    position = f"{progress.status}, {progress.acknowledged_offset} acknowledged"
    title = f"buckets {buckets} of segment {segment}: {holder}, {position}"
    label = holder if len(holder) * _LETTER_WIDTH < width else ""
    return _box(_BUCKET_RANGE_CLASSES.get(progress.status, "active"), title, left, width, top, label)


def _box(css_class: str, title: str, left: float, width: float, top: int, label: str) -> str:
    text = ""
    if label:
        text = f'<text x="{left + width / 2:.1f}" y="{top + BOX / 2 + 5:.1f}">{escape(label)}</text>'
    return (
        f'<g class="{escape(css_class)}"><title>{escape(title)}</title>'
        f'<rect x="{left + 1:.1f}" y="{top}" width="{max(width - 2, 1):.1f}" height="{BOX}" rx="3"/>{text}</g>'
    )


def _svg(rows: int, label: str, parts: Sequence[str]) -> str:
    height = rows * ROW
    start = f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{label}">'
    return "\n".join([start, *parts, "</svg>"])
