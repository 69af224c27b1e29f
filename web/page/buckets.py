"""Draws which consumers share a segment: its key buckets as a bar, one field for each range. Pure.

Text that does not fit into a field is in its title, and in the list below for readers that see no drawing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headgate.model.hashing import KEY_BUCKETS
from headgate.views.subscriptions import BucketRangeAssignment, SegmentAssignment
from web.page.markup import Html, element
from web.page.units import count, plural

MAX_BARS: Final = 50
"""Shared segments that are drawn; the API has all."""
_FIELD, _HEIGHT = 40, 34
_LETTER: Final = 6.6


def bucket_bars(segments: Sequence[SegmentAssignment]) -> Html | None:
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
