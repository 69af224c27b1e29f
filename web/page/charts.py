"""Draws rates and backlog over time, as SVG, with the same values as a table. Pure.

Each chart has the same time axis, which ends at the newest sample, and its own scale from 0. A gap is
a value that is unknown. A screen reader says the newest, the lowest and the highest value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from headgate.model.time_text import time_of_day
from web.api.documents import HistorySample
from web.page.markup import Column, Html, count, duration, element, part, rate, table

WIDTH, HEIGHT = 300, 96
TABLE_ROWS: Final = 40
"""The newest samples in the table; the API has all."""
_TOP, _BOTTOM = 18, 16
"""Space for the highest value, and for the times."""


@dataclass(frozen=True, slots=True)
class _Chart:
    name: str
    unit: str
    value: Callable[[HistorySample], float | None]
    text: Callable[[float | None], str]

    def shown(self, sample: HistorySample) -> str:
        return self.text(self.value(sample))


_CHARTS: Final = (
    _Chart("Stored", "records/s", lambda each: each.stored_per_second, rate),
    _Chart("Acknowledged", "records/s", lambda each: each.acknowledged_per_second, rate),
    _Chart("Backlog", "records", lambda each: each.backlog_records, lambda n: count(n if n is None else int(n))),
)


def charts(history: Sequence[HistorySample]) -> Html:
    if len(history) < 2:  # noqa: PLR2004
        text = (
            "A daemon takes a sample every 15 seconds, of its busiest topics and subscriptions. None is known here yet."
        )
        return part("rates", element("p", text), heading="Rates over time")
    return part(
        "rates",
        element("div", *(_drawn(chart, history) for chart in _CHARTS), class_="charts"),
        element("details", element("summary", "Rates as a table"), _table(history), id="rates-table"),
        heading="Rates over time",
    )


def _drawn(chart: _Chart, history: Sequence[HistorySample]) -> Html:
    values = [chart.value(each) for each in history]
    known = [each for each in values if each is not None]
    spoken = f"{chart.name} in {chart.unit}: unknown"
    if known:
        spoken = (
            f"{chart.name} in {chart.unit} over {_span(history)}: now {chart.text(values[-1])}, "
            f"lowest {chart.text(min(known))}, highest {chart.text(max(known))}"
        )
    return element(
        "div",
        element("p", chart.name, element("small", f" {chart.unit}"), class_="caption"),
        element(
            "svg",
            element("title", spoken),
            _axes(chart.text(max(known)) if known else "unknown", history),
            element("path", d=_line(history, values), class_="line"),
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            role="img",
        ),
        class_="chart",
    )


def _line(history: Sequence[HistorySample], values: Sequence[float | None]) -> str:
    """Return the path through the known values; one that is alone between gaps is a dot."""
    begin, end = history[0].at_ms, history[-1].at_ms
    highest = max((each for each in values if each is not None), default=0.0) or 1.0
    found: list[str] = []
    points = ((each.at_ms, value) for each, value in zip(history, values, strict=True))
    for has_value, run in groupby(points, key=lambda point: point[1] is not None):
        if has_value:
            places = [
                f"{(at_ms - begin) / max(1, end - begin) * (WIDTH - 2) + 1:.1f} "
                f"{HEIGHT - _BOTTOM - (value or 0.0) / highest * (HEIGHT - _TOP - _BOTTOM):.1f}"
                for at_ms, value in run
            ]
            found.append(f"M{'L'.join(places)}{'h0' if len(places) == 1 else ''}")
    return "".join(found)


def _axes(highest: str, history: Sequence[HistorySample]) -> Html:
    y = HEIGHT - _BOTTOM
    return element(
        "g",
        element("line", x1=0, x2=WIDTH, y1=y, y2=y),
        element("text", highest, x=0, y=12),
        element("text", f"{_span(history)} ago", x=0, y=HEIGHT - 3),
        element("text", time_of_day(history[-1].at_ms), x=WIDTH, y=HEIGHT - 3, class_="end"),
        class_="axis",
        aria_hidden="true",
    )


def _span(history: Sequence[HistorySample]) -> str:
    return duration((history[-1].at_ms - history[0].at_ms) / 1000)


def _table(history: Sequence[HistorySample]) -> Html:
    columns: tuple[Column[HistorySample], ...] = (
        Column("time", lambda each: time_of_day(each.at_ms)),
        *(Column(each.name.lower(), each.shown, number=True) for each in _CHARTS),
    )
    return table("Rates over time, the newest first", columns, history[: -TABLE_ROWS - 1 : -1])
