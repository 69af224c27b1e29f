"""Draw a run as SVG: throughput and latency over time, with the faults marked. Pure, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from chaos.timeline import SECOND_NS, FaultWindow, Timeline

WIDTH: Final = 1200
HEIGHT: Final = 560
LEFT: Final = 70
RIGHT: Final = 20
RATES: Final = (60, 230)
"""Top and height of the upper panel."""
LATENCIES: Final = (340, 160)
ACKNOWLEDGED, DELIVERED, LATENCY, FAULT = "#1b6ca8", "#2e933c", "#d1495b", "#c77d0a"
HIGHEST: Final = 100_000.0
"""The end of both axes, which begin at 1: records per second, and milliseconds."""


def chart(title: str, timeline: Timeline, faults: Sequence[FaultWindow]) -> str:
    """Return the drawing; each fault has the number of its row in the report, from 1."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font-family: sans-serif; font-size: 12px; fill: #222222 }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        *_fault_marks(timeline, faults),
        *_axis(RATES),
        *_line(timeline.acknowledged_rates(), ACKNOWLEDGED, "acknowledged per second", 0),
        *_line(timeline.delivered_rates(), DELIVERED, "delivered per second", 1),
        f'<text x="{LEFT}" y="{LATENCIES[0] - 8}" style="fill: {LATENCY}">longest latency per second, ms</text>',
        *_axis(LATENCIES),
        *_latencies(timeline.longest_latencies_ms()),
        *_time_axis(timeline.seconds),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _x(second: float, seconds: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * second / max(1, seconds), 1)


def _fault_marks(timeline: Timeline, faults: Sequence[FaultWindow]) -> list[str]:
    top, bottom = RATES[0], LATENCIES[0] + LATENCIES[1]
    parts = []
    for number, fault in enumerate(faults, 1):
        begins = _x((fault.began_ns - timeline.began_ns) / SECOND_NS, timeline.seconds)
        ends = _x((fault.ended_ns - timeline.began_ns) / SECOND_NS, timeline.seconds)
        width = max(1.0, round(ends - begins, 1))
        area = f'x="{begins}" y="{top}" width="{width}" height="{bottom - top}"'
        tip = f"<title>{number}: {escape(fault.name)}</title>"
        parts.append(f'<rect {area} fill="{FAULT}" opacity="0.18">{tip}</rect>')
        parts.append(f'<text x="{begins}" y="{top - 4}">{number}</text>')
    return parts


def _axis(panel: tuple[int, int]) -> list[str]:
    parts = []
    for power in range(round(math.log10(HIGHEST)) + 1):
        y = _y(10.0**power, panel)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{10**power:,}</text>')
    return parts


def _y(value: float, panel: tuple[int, int]) -> float:
    """Return the height of a value on a logarithmic axis, which shows outages and what is made up after them."""
    top, height = panel
    share = math.log10(max(value, 1.0)) / math.log10(HIGHEST)
    return round(top + height * (1 - min(1.0, share)), 1)


def _line(values: Sequence[float], colour: str, name: str, place: int) -> list[str]:
    points = " ".join(f"{_x(second + 0.5, len(values))},{_y(value, RATES)}" for second, value in enumerate(values))
    return [
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        f'<text x="{WIDTH - RIGHT - 180 * (2 - place)}" y="22" style="fill: {colour}">{escape(name)}</text>',
    ]


def _latencies(values: Sequence[float]) -> list[str]:
    """Draw one dot per second; a second in which nothing was acknowledged has none."""
    return [
        f'<circle cx="{_x(second + 0.5, len(values))}" cy="{_y(value, LATENCIES)}" r="2" fill="{LATENCY}"/>'
        for second, value in enumerate(values)
        if value > 0
    ]


def _time_axis(seconds: int) -> list[str]:
    step = max(1, math.ceil(seconds / 12 / 10) * 10) if seconds > 30 else 5  # noqa: PLR2004 - half a minute
    bottom = LATENCIES[0] + LATENCIES[1]
    parts = [
        f'<text x="{_x(second, seconds)}" y="{bottom + 18}" text-anchor="middle">{second}</text>'
        for second in range(0, seconds + 1, step)
    ]
    return [*parts, f'<text x="{WIDTH / 2}" y="{bottom + 38}" text-anchor="middle">seconds</text>']
