"""Parts that all pages share: tables, tiles of values, badges. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from web.page.markup import Html, element
from web.page.units import age_seconds, count, duration

RowT = TypeVar("RowT")


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
