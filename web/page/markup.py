"""Builds HTML from values, formatted for people, and the parts that all pages share: tables, tiles, badges. Pure.

Text is escaped by construction: only `Html` is taken as it is. ``-`` is a value that is unknown or does not exist.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from headgate.model.time_text import duration as known_duration

VOID = frozenset({"input", "link", "meta", "rect", "line"})
UNKNOWN: Final = "-"
_THOUSAND: Final = 1000
_EXACT_BELOW: Final = 10_000
_ONE_DIGIT_BELOW: Final = 100
RowT = TypeVar("RowT")


class Html(str):
    """Markup. Everything else is text."""

    __slots__ = ()


def markup(*content: object) -> Html:
    """Return ``content`` as markup: `Html` as it is, None as nothing, iterables one by one, other values as text."""
    return Html("".join(map(_one, content)))


def element(name: str, /, *content: object, **attributes: object) -> Html:
    """Return an element. ``class_`` is ``class``, other underscores are hyphens.

    An attribute that is None or False is left out, and one that is True has no value.
    """
    start = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not content:
        return Html(f"<{name}{start}/>")
    return Html(f"<{name}{start}>{markup(*content)}</{name}>")


def _one(value: object) -> str:
    if isinstance(value, Html):
        return value
    if value is None:
        return ""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "".join(map(_one, value))
    return escape(str(value))


def count(value: int | None, *, estimated: bool = False) -> str:
    """Return ``950``, ``9 999``, ``12.3 k`` or ``4.56 M``; ``~`` precedes an estimate."""
    if value is None:
        return UNKNOWN
    text = f"{value:,}".replace(",", " ") if value < _EXACT_BELOW else _scaled(value)
    return f"~{text}" if estimated else text


def rate(per_second: float | None) -> str:
    """Return ``0/s``, ``0.3/s``, ``12/s`` or ``1.2 k/s``."""
    if per_second is None:
        return UNKNOWN
    if per_second >= _THOUSAND:
        return f"{_scaled(per_second)}/s"
    return f"{per_second:.1f}/s" if 0 < per_second < 10 else f"{per_second:.0f}/s"  # noqa: PLR2004


def size(size_bytes: int | None) -> str:
    """Return ``950 B`` or ``1.2 MB``, in powers of a thousand."""
    if size_bytes is None:
        return UNKNOWN
    return f"{size_bytes} B" if size_bytes < _THOUSAND else f"{_scaled(size_bytes, ('kB', 'MB', 'GB', 'TB', 'PB'))}"


def duration(seconds: float | None) -> str:
    """Return a duration as the command line shows it."""
    return UNKNOWN if seconds is None else known_duration(seconds)


def age_seconds(since_ms: int | None, as_of_ms: int) -> float:
    """Return the time since ``since_ms``; 0 if it is unknown, or in the future by another clock."""
    return 0.0 if since_ms is None else max(0, as_of_ms - since_ms) / 1000


def plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _scaled(value: float, units: tuple[str, ...] = ("k", "M", "G", "T", "P")) -> str:
    scaled = value / _THOUSAND
    for unit in units[:-1]:
        if scaled < _THOUSAND * 0.9995:
            return f"{scaled:.3g} {unit}" if scaled < _ONE_DIGIT_BELOW else f"{scaled:.0f} {unit}"
        scaled /= _THOUSAND
    return f"{scaled:,.0f} {units[-1]}".replace(",", " ")


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """A column of a table. ``number``: right-aligned; ``minor``: not shown on narrow screens."""

    name: str
    cell: Callable[[RowT], object]
    """Returns the content of its cell in the row of a value."""
    number: bool = False
    minor: bool = False

    @property
    def css_class(self) -> str | None:
        return " ".join(name for name, has in (("number", self.number), ("minor", self.minor)) if has) or None


def table(caption: str, columns: Sequence[Column[RowT]], rows: Iterable[RowT]) -> Html:
    """Return a table with a row for each of ``rows``, whose first column names it."""
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element(
                "thead",
                element("tr", *(element("th", each.name, scope="col", class_=each.css_class) for each in columns)),
            ),
            element("tbody", *(element("tr", *_cells(columns, row)) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _cells(columns: Sequence[Column[RowT]], row: RowT) -> Iterable[Html]:
    first, *others = columns
    yield element("th", first.cell(row), scope="row", class_=first.css_class)
    for column in others:
        yield element("td", column.cell(row), class_=column.css_class)


def tiles(*values: tuple[str, str, str]) -> Html:
    """Return (name, value, remark) as a list of definitions."""
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, element("small", remark) if remark else None))
            for name, value, remark in values
        ),
        class_="tiles",
    )


def badge(state: str) -> Html:
    """Return ``state`` with its color; the text says the same."""
    return element("span", state.replace("_", " "), class_=f"badge {state}")


def blocked_badge(segments: int) -> Html | str:
    return element("span", count(segments), class_="badge blocked") if segments else "0"


def blocked_tile(segments: int, since_ms: int | None, as_of_ms: int) -> tuple[str, str, str]:
    """Return how many segments are blocked, and how long the longest one has been."""
    longest = duration(age_seconds(since_ms, as_of_ms))
    return "Blocked", count(segments), f"segments, longest for {longest}" if segments else "nothing waits"


def link(text: object, *path: str) -> Html:
    return element("a", text, href="/".join(["", *(quote(each, safe="") for each in path)]))


def part(name: str, *content: object, heading: str | None = None) -> Html:
    """Return a part of a page, which is replaced as a whole when it changes."""
    title = None if heading is None else element("h2", heading, id=f"{name}-heading")
    return element("section", title, *content, id=name, aria_labelledby=None if heading is None else f"{name}-heading")
