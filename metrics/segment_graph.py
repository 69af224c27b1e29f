"""A topic's segments as a drawing, and who shares one of them: description in, SVG text out. Pure.

Each segment is a box. From left to right runs the ring of key hashes, so a box is as wide as its share of the keys;
from top to bottom run the generations, so a split shows as two halves below their parent, a merge as one box below
two. Lines join parents and children. What a box is too narrow to say stands in its title.

A segment that consumers of a subscription share is a bar over its key buckets, one box a share, with its holder.

Only the newest `MAX_DRAWN_SEGMENTS` segments are drawn, so that a page stays a page.
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
"""Narrower boxes carry no number."""
_LETTER_WIDTH = 7
_BAR_LEFT = 100
_BAR_WIDTH = WIDTH - _BAR_LEFT
_BUCKET_RANGE_CLASSES = {"revoking": "blocked", "waiting": "sealed"}
"""Status of a share → the colours that it has; the others are those of an active segment."""


def segment_graph(segments: Sequence[SegmentDescription], blocked: frozenset[int] = frozenset()) -> str:
    """Return ``<svg>…</svg>``; ``blocked`` segments are those that some subscription may not read yet."""
    drawn = {each.segment: each for each in sorted(segments, key=lambda each: each.segment)[-MAX_DRAWN_SEGMENTS:]}
    rows = _rows(drawn)
    height = (max(rows.values(), default=0) + 1) * ROW
    parts = [
        (
            f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
            f'aria-label="{len(drawn)} segments over the ring of key hashes">'
        )
    ]
    for segment in drawn.values():
        parts += [_line(drawn[parent], segment, rows) for parent in segment.parents if parent in drawn]
    parts += [_box(segment, rows, blocked) for segment in drawn.values()]
    return "\n".join([*parts, "</svg>"])


def _rows(drawn: Mapping[int, SegmentDescription]) -> dict[int, int]:
    """Return the generation of each segment: one below its lowest parent. Ids rise, so parents come first."""
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


def _box(segment: SegmentDescription, rows: Mapping[int, int], blocked: frozenset[int]) -> str:
    left, right = _span(segment)
    top = rows[segment.segment] * ROW
    state = "blocked" if segment.segment in blocked else segment.state
    title = (
        f"segment {segment.segment}: hashes {segment.first_hash:04x}-{segment.last_hash:04x}, {segment.state}, "
    ) + (f"{segment.next_offset} records" if segment.label is None else f"{segment.label} at its source")
    label = ""
    if right - left >= _LABEL_WIDTH:
        label = f'<text x="{(left + right) / 2:.1f}" y="{top + BOX / 2 + 5:.1f}">{segment.segment}</text>'
    return (
        f'<g class="{escape(state)}"><title>{escape(title)}</title>'
        f'<rect x="{left + 1:.1f}" y="{top}" width="{max(right - left - 2, 1):.1f}" height="{BOX}" rx="3"/>{label}</g>'
    )


def bucket_range_bars(segments: Sequence[SegmentProgress]) -> str:
    """Return ``<svg>…</svg>`` with a bar for each shared segment, at most `MAX_DRAWN_SEGMENTS`; empty if none is."""
    shared = [each for each in segments if each.bucket_ranges][:MAX_DRAWN_SEGMENTS]
    if not shared:
        return ""
    height = len(shared) * ROW
    label = f"who reads which key buckets of {len(shared)} segments"
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{label}">']
    for row, segment in enumerate(shared):
        middle = row * ROW + BOX / 2 + 5
        parts.append(f'<text x="{_BAR_LEFT / 2}" y="{middle:.1f}">segment {segment.segment}</text>')
        parts += [_bucket_range_bar(segment.segment, share, row * ROW) for share in segment.bucket_ranges]
    return "\n".join([*parts, "</svg>"])


def _bucket_range_bar(segment: int, share: BucketRangeProgress, top: int) -> str:
    left = _BAR_LEFT + share.first_bucket * _BAR_WIDTH / KEY_BUCKETS
    width = (share.end_bucket - share.first_bucket) * _BAR_WIDTH / KEY_BUCKETS
    buckets = BucketRange(segment, share.first_bucket, share.end_bucket).buckets
    holder = share.consumer or share.status
    label = ""
    if len(holder) * _LETTER_WIDTH < width:
        label = f'<text x="{left + width / 2:.1f}" y="{top + BOX / 2 + 5:.1f}">{escape(holder)}</text>'
    title = (
        f"buckets {buckets} of segment {segment}: {holder}, {share.status}, {share.acknowledged_offset} acknowledged"
    )
    return (
        f'<g class="{_BUCKET_RANGE_CLASSES.get(share.status, "active")}"><title>{escape(title)}</title>'
        f'<rect x="{left + 1:.1f}" y="{top}" width="{width - 2:.1f}" height="{BOX}" rx="3"/>{label}</g>'
    )
