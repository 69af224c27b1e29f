"""Serves the status page: its documents, its files, and the streams that keep it current.

Pages are rendered in a worker thread from the documents of the API.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web
from yarl import URL

from metrics.events import Observer
from web.access import RefusedError
from web.actions import Actions, find_action
from web.api.documents import ActionDocument
from web.api.overview import NotAnsweredError, StatusSource, UnknownNameError
from web.api.query import InvalidQueryError, Query, read_query
from web.bodies import read_body, send_body
from web.live_stream import LivePages
from web.page import topics
from web.page.asked_pages import action_page, events_page, letters_page, records_page
from web.page.markup import element, part
from web.page.overview import LISTED_ROWS, listing_page, overview_page
from web.page.shell import Page, Surroundings, whole_page
from web.stored_records import StoredRecords

FOLDER: Final = Path(__file__).parent / "page" / "static"
NAMES: Final = ("favicon.svg", "idiomorph.min.js", "page.css", "page.js")
IMMUTABLE: Final = "private, max-age=31536000, immutable"
"""Private: the files need the token, too."""
MAX_PATH: Final = 1000
TITLES: Final = {400: "This is not possible", 403: "Not allowed", 404: "There is no such page", 503: "No answer"}
RECORDS_QUERY: Final = ("segment", "key", "key_encoding", "last")
EVENTS_QUERY: Final = ("topic", "since_ms", "before_ms", "limit")
PATHS: Final = ("/", "/topics", "/subscriptions", "/topics/{topic}", "/topics/{topic}/subscriptions/{subscription}")


class StaticFiles:
    def __init__(self) -> None:
        self.urls = {
            name: f"/static/{name}?v={sha256((FOLDER / name).read_bytes()).hexdigest()[:16]}" for name in NAMES
        }
        """File → its URL, with its digest: a browser may keep it permanently."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self.urls:
            raise web.HTTPNotFound
        caching = IMMUTABLE if request.path_qs == self.urls[name] else "private, no-cache"
        return web.FileResponse(FOLDER / name, headers={"Cache-Control": caching})


@dataclass(eq=False, repr=False)
class StatusPages:
    source: StatusSource
    records: StoredRecords
    actions: Actions
    daemon: InitVar[str]
    cluster: InitVar[str]
    version: InitVar[str]
    runbook_url: str | None
    observer: InitVar[Observer]
    may_read: Callable[[web.Request], bool]
    """Whether the token of a request is accepted now."""

    def __post_init__(self, daemon: str, cluster: str, version: str, observer: Observer) -> None:
        self._static = StaticFiles()
        self._around = Surroundings(daemon=daemon, cluster=cluster, version=version, assets=self._static.urls)
        self.live = LivePages(self._render, version=version, observer=observer)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        live = partial(self._respond, lambda request: self._render(request.path_qs), live=True)
        for path in PATHS:
            router.add_get(path, live)
        router.add_get("/events", partial(self._respond, self._events_page))
        router.add_get("/topics/{topic}/records", partial(self._respond, self._records_page))
        router.add_get(PATHS[-1] + "/dead-letters", partial(self._respond, self._letters_page))
        router.add_get("/actions/{action}", partial(self._respond, self._action_page))
        router.add_post("/actions/{action}", partial(self._respond, self._action_page))
        router.add_get("/static/{name}", self._static.handle)
        router.add_get("/live", self._live, allow_head=False)

    async def _events_page(self, request: web.Request) -> Page:
        query = read_query(request.query, EVENTS_QUERY)
        return await asyncio.to_thread(events_page, await self.records.events(query), query)

    async def _records_page(self, request: web.Request) -> Page:
        query, authorization = read_query(request.query, RECORDS_QUERY), request.headers.get("Authorization")
        document = await self.records.newest(request.match_info["topic"], query, authorization)
        return await asyncio.to_thread(records_page, document, query)

    async def _letters_page(self, request: web.Request) -> Page:
        query = read_query(request.query, ("last",))
        return letters_page(await self.actions.dead_letters(**request.match_info, query=query, asked=request.headers))

    async def _action_page(self, request: web.Request) -> Page:
        name, confirmed = request.match_info["action"], request.method == "POST"
        query = (await read_body(request)).decode("utf-8", "replace") if confirmed else request.query_string
        given = dict(parse_qsl(query, keep_blank_values=True))
        action = find_action(name)
        found: ActionDocument | str = ""
        if confirmed or given.keys() >= {each for each, kind in action.fields.items() if not isinstance(kind, tuple)}:
            try:
                authorization = request.headers.get("Authorization")
                found = await self.actions.run(name, given, authorization, dry_run=not confirmed)
            except InvalidQueryError as error:
                found = str(error)
        return action_page(name, action.summary, action.fields, given, found)

    async def _respond(
        self, make: Callable[[web.Request], Awaitable[Page]], request: web.Request, *, live: bool = False
    ) -> web.StreamResponse:
        """Send a page, with the actions that the holder of the token may do."""
        try:
            page = await make(request)
            status = page.status
            authorization = request.headers.get("Authorization")
            may = (each for each in page.actions if self.actions.may(each, page.acts_on, authorization))
            page = replace(page, actions=tuple(may))
        except RefusedError as error:
            status, text = error.status, str(error)
            live = live and isinstance(error, NotAnsweredError)
            page = _problem(TITLES[status], text + " This page loads again when there is one." * live, live=live)
        body = await asyncio.to_thread(lambda: whole_page(page, request.path_qs, self._around).encode())
        return await send_body(request, body, "text/html", "utf-8", status)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        path = request.query.get("page", "/")
        if not path.startswith("/") or len(path) > MAX_PATH:
            return web.Response(status=400, text="page: give the path of a page of this daemon\n")
        return await self.live.stream(request, path, lambda: self.may_read(request))

    async def _render(self, path: str) -> Page:
        """Return the page at ``path``. Raises UnknownNameError, NotAnsweredError or InvalidQueryError."""
        try:
            url = URL(path)
        except ValueError:
            raise InvalidQueryError(f"{path[:100]!r} is no path") from None
        match [each for each in url.parts if each != "/"]:
            case [""] | []:
                return await asyncio.to_thread(overview_page, await self.source.overview(), self.runbook_url)
            case ["topics" | "subscriptions" as kind]:
                contains, after = url.query.get("contains", ""), url.query.get("after", "")
                query = Query(limit=LISTED_ROWS, after=after, contains=contains)
                return await asyncio.to_thread(listing_page, kind, await self.source.overview(), query)
            case ["topics", topic]:
                return await asyncio.to_thread(topics.topic_page, await self.source.topic(topic, own=False))
            case ["topics", topic, "subscriptions", subscription]:
                document = await self.source.subscription(topic, subscription, own=False)
                return await asyncio.to_thread(topics.subscription_page, document)
            case _:
                raise UnknownNameError(f"there is no page {path[:100]!r}")


def _problem(title: str, text: str, *, live: bool) -> Page:
    content = part("problem", element("p", text), element("p", element("a", "Overview", href="/")))
    return Page(title=title, as_of_ms=0, parts={"problem": content}, live=live)
