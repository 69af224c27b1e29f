"""What surrounds the parts of a page: head, navigation, footer. Pure.

The page works without its script, which only replaces the parts that change. It has no inline script
or style, so the content security policy allows neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from urllib.parse import quote, urlencode

from headgate.model.time_text import time_of_day
from web.page.markup import Column, Html, element, link, markup, part, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of one page. ``parts``: id → the element with this id."""

    title: str
    as_of_ms: int
    parts: Mapping[str, Html]
    crumbs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(text, path) of the pages above it, and of itself."""
    heading: str = ""
    contains: str = ""
    """What its search field contains."""
    actions: tuple[str, ...] = ()
    """For those who may. They belong to the reader, so no stream has them."""
    acts_on: Mapping[str, str] = field(default_factory=dict)
    live: bool = field(default=True)
    """Whether a stream of events replaces the parts."""
    status: int = 200
    """The status of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    daemon: str
    cluster: str
    version: str
    assets: Mapping[str, str]


def whole_page(page: Page, path: str, around: Surroundings) -> Html:
    """Return the document. ``path``: path and query of the page, which its stream of events follows."""
    return markup(
        Html("<!doctype html>\n"),
        element(
            "html",
            _head(page, around),
            element(
                "body",
                element("a", "Skip to the content", href="#main", class_="skip"),
                _header(page, around),
                element("main", *page.parts.values(), _actions(page) if page.actions else None, id="main"),
                _footer(around),
                data_events=f"/live?page={quote(path, safe='')}" if page.live else None,
                data_version=around.version,
            ),
            lang="en",
        ),
        Html("\n"),
    )


def as_of(page: Page) -> Html:
    return element("span", "data of ", element("time", time_of_day(page.as_of_ms)), id="as-of", data_ms=page.as_of_ms)


def sources(*rows: tuple[str, str, str, str]) -> Html:
    """Return where values come from: (value, path of the API, metric, command) each."""
    columns: tuple[Column[tuple[str, str, str, str]], ...] = (
        Column("value", itemgetter(0)),
        Column("API", lambda row: element("a", row[1], href=row[1])),
        Column("metric", lambda row: element("code", row[2])),
        Column("command", lambda row: element("code", row[3])),
    )
    return part(
        "sources", element("details", element("summary", "The same values elsewhere"), table("Sources", columns, rows))
    )


def _head(page: Page, around: Surroundings) -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{page.title} · {around.cluster or 'headgate'}"),
        element("link", rel="icon", href=around.assets["favicon.svg"], type="image/svg+xml"),
        element("link", rel="stylesheet", href=around.assets["page.css"]),
        element("script", src=around.assets["idiomorph.min.js"], defer=True),
        element("script", src=around.assets["page.js"], defer=True),
    )


def _header(page: Page, around: Surroundings) -> Html:
    crumbs = [("headgate", ()), *page.crumbs]
    return element(
        "header",
        element(
            "nav",
            element(
                "ol",
                *(
                    element(
                        "li",
                        element("a", text, href="/", class_="home") if not path else link(text, *path),
                        aria_current="page" if number == len(crumbs) - 1 else None,
                    )
                    for number, (text, path) in enumerate(crumbs)
                ),
            ),
            aria_label="Breadcrumb",
        ),
        element(
            "form",
            element(
                "label", "Names that contain ", element("input", name="contains", value=page.contains, type="search")
            ),
            element("button", "Topics"),
            element("button", "Subscriptions", formaction="/subscriptions"),
            role="search",
            action="/topics",
        ),
        element("h1", page.heading or page.title),
        element(
            "p",
            element("span", "static", id="live", class_="badge") if page.live else None,
            " ",
            as_of(page) if page.live or page.as_of_ms else None,
            f" from daemon {around.daemon}",
            f", cluster {around.cluster}" if around.cluster else None,
            class_="where",
        ),
        element("p", id="stale", role="alert", hidden=True),
    )


def _actions(page: Page) -> Html:
    links = [element("a", each, href=f"/actions/{each}?{urlencode(page.acts_on)}") for each in page.actions]
    return element("p", "Actions: ", [[each, " "] for each in links], id="actions")


def _footer(around: Surroundings) -> Html:
    paths = ("/api/v1/openapi.json", "/metrics", "/readyz", "/livez")
    return element(
        "footer",
        element("p", f"headgate {around.version}. Also: "),
        element("ul", *(element("li", element("a", path, href=path)) for path in paths)),
    )
