"""Draws a line chart as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 130, 50, 55
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5fa8", "#c77d0a", "#4a4a4a")


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    ticks: Sequence[str],
    lines: Mapping[str, Sequence[float]],
) -> str:
    """Return a chart of ``lines`` (name → one value per tick) over evenly spaced ``ticks``."""
    assert ticks, "nothing to draw"
    assert all(len(values) == len(ticks) for values in lines.values()), "a value for each tick"
    top = max((value for values in lines.values() for value in values), default=0.0) or 1.0
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(place: int) -> float:
        return round(LEFT + across * (place / max(1, len(ticks) - 1)), 1)

    def y(value: float) -> float:
        return round(TOP + down * (1 - value / top), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font-family: sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, TOP - 22, title, size=15),
        _text(LEFT + across / 2, HEIGHT - 14, x_label, anchor="middle"),
        _text(LEFT, TOP - 6, y_label),
    ]
    for fifth in range(6):
        value = top * fifth / 5
        parts.append(f'<path d="M{LEFT} {y(value)}h{across}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 8, y(value) + 4, f"{value:.3g}", anchor="end"))
    parts += [_text(x(place), HEIGHT - BOTTOM + 18, tick, anchor="middle") for place, tick in enumerate(ticks)]
    for number, (name, values) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(place)},{y(value)}" for place, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(p)}" cy="{y(v)}" r="3" fill="{colour}"/>' for p, v in enumerate(values)]
        # The legend is separate from the line ends, which may coincide.
        parts.append(_text(WIDTH - RIGHT + 14, TOP + 12 + 18 * number, name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#222222") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
