"""Parts that all pages share: tables, tiles of values, badges. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from web.page.markup import Html, element


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. ``number``: right-aligned; ``minor``: not shown on narrow screens."""

    name: str
    number: bool = False
    minor: bool = False

    @property
    def css_class(self) -> str | None:
        """The class of its cells."""
        return " ".join(name for name, has in (("number", self.number), ("minor", self.minor)) if has) or None


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table whose first column names its rows."""
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", *(_head(column) for column in columns))),
            element("tbody", *(element("tr", *_cells(columns, row)) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _head(column: Column) -> Html:
    return element("th", column.name, scope="col", class_=column.css_class)


def _cells(columns: Sequence[Column], row: Sequence[object]) -> Iterable[Html]:
    first, *others = zip(columns, row, strict=True)
    yield element("th", first[1], scope="row", class_=first[0].css_class)
    for column, value in others:
        yield element("td", value, class_=column.css_class)


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


def link(text: object, *path: str) -> Html:
    """Return a link to a page of a topic or of a subscription."""
    return element("a", text, href="/".join(["", *(quote(each, safe="") for each in path)]))


def part(name: str, *content: object, heading: str | None = None) -> Html:
    """Return a part of a page, which is replaced as a whole when it changes."""
    title = None if heading is None else element("h2", heading, id=f"{name}-heading")
    return element("section", title, *content, id=name, aria_labelledby=None if heading is None else f"{name}-heading")
