"""Serves the HTTP API, version 1: `web.api.openapi.OPERATIONS` below ``/api/v1``.

Documents are encoded in a worker thread, a few at a time, because megabytes of text would block the loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from headgate.model.text import UNREADABLE_JSON
from web.access import RefusedError
from web.actions import ACTIONS, Actions
from web.api.documents import ActionDocument, Daemons, ErrorDocument, scale_of
from web.api.openapi import OPERATIONS, ROOT, Operation, openapi_document
from web.api.overview import NotAnsweredError, StatusSource
from web.api.query import InvalidQueryError, Query, read_query, subscription_page, topic_page
from web.bodies import read_body, send_body
from web.stored_records import StoredRecords

MAX_DOCUMENTS: Final = 4
"""Documents that are made at the same time; further requests wait."""
RETRY_SECONDS: Final = 2

Answer = Callable[[web.Request, Query], Awaitable[Any]]


class HttpApi:
    def __init__(self, source: StatusSource, records: StoredRecords, actions: Actions, version: str) -> None:
        self._source = source
        self._records_of = records
        self._version = version
        self._actions = actions
        self._making = asyncio.Semaphore(MAX_DOCUMENTS)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for operation in OPERATIONS:
            router.add_get(ROOT + operation.path, partial(self._handle, operation, getattr(self, f"_{operation.name}")))
        action = Operation("action", "/actions/{action}", "", ActionDocument, ("dry_run",))
        router.add_post(ROOT + action.path, partial(self._handle, action, self._action))

    async def _handle(self, operation: Operation, answer: Answer, request: web.Request) -> web.StreamResponse:
        try:
            query = read_query(request.query, operation.query)
            if request.method == "POST":
                await read_body(request)  # Not while others wait for it.
            async with self._making:
                document = await answer(request, query)
                body = await asyncio.to_thread(msgspec.json.encode, document)
        except RefusedError as error:
            headers = {"Retry-After": str(RETRY_SECONDS)} if isinstance(error, NotAnsweredError) else {}
            body = msgspec.json.encode(ErrorDocument(error=str(error))) + b"\n"
            return web.Response(body=body, status=error.status, content_type="application/json", headers=headers)
        return await send_body(request, body + b"\n", "application/json")

    async def _cluster(self, _: web.Request, __: Query) -> Any:
        return (await self._source.overview()).cluster

    async def _daemons(self, _: web.Request, __: Query) -> Any:
        overview = await self._source.overview()
        return Daemons(as_of_ms=overview.cluster.as_of_ms, daemons=overview.daemons)

    async def _daemon(self, _: web.Request, __: Query) -> Any:
        return (await self._source.part()).daemon

    def _daemon_rows(self, _: web.Request, __: Query) -> Awaitable[Any]:
        return self._source.part()

    async def _topics(self, _: web.Request, query: Query) -> Any:
        overview = await self._source.overview()
        return await asyncio.to_thread(topic_page, overview.topics, query, overview.cluster.as_of_ms)

    def _topic(self, request: web.Request, query: Query) -> Awaitable[Any]:
        return self._source.topic(**request.match_info, own=query.own)

    def _records(self, request: web.Request, query: Query) -> Awaitable[Any]:
        return self._records_of.newest(request.match_info["topic"], query, request.headers.get("Authorization"))

    def _events(self, _: web.Request, query: Query) -> Awaitable[Any]:
        return self._records_of.events(query)

    async def _subscriptions(self, _: web.Request, query: Query) -> Any:
        overview = await self._source.overview()
        return await asyncio.to_thread(subscription_page, overview.subscriptions, query, overview.cluster.as_of_ms)

    def _subscription(self, request: web.Request, query: Query) -> Awaitable[Any]:
        return self._source.subscription(**request.match_info, own=query.own)

    def _dead_letters(self, request: web.Request, query: Query) -> Awaitable[Any]:
        return self._actions.dead_letters(**request.match_info, query=query, asked=request.headers)

    async def _scale(self, request: web.Request, _: Query) -> Any:
        return scale_of(await self._source.subscription(**request.match_info, own=False))

    async def _action(self, request: web.Request, query: Query) -> Any:
        try:
            given = msgspec.json.decode(await request.read(), type=dict[str, Any])
        except UNREADABLE_JSON as error:
            raise InvalidQueryError(f"the body is no JSON object: {error}") from None
        name, authorization = request.match_info["action"], request.headers.get("Authorization")
        return await self._actions.run(name, given, authorization, dry_run=query.dry_run)

    async def _openapi(self, _: web.Request, __: Query) -> Any:
        return openapi_document(self._version, ACTIONS)
