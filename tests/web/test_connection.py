"""Which end of a connection counts as a request that was too slow."""

import asyncio
from unittest.mock import create_autospec

from aiohttp import web

from web.listener import HttpConnection

SOME_HEADERS = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


def connected(slow_seconds: float = 0.0) -> tuple[HttpConnection, asyncio.Transport, list[bool]]:
    """Return a connection, its transport, and the list to which its end is added: whether it was too slow."""
    transport = create_autospec(asyncio.Transport, instance=True)
    transport.is_closing.return_value = False
    ends: list[bool] = []
    handler = create_autospec(web.RequestHandler, instance=True)
    connection = HttpConnection(handler, slow_seconds, lambda _, slow: ends.append(slow))
    connection.connection_made(transport)
    return connection, transport, ends


async def test_a_request_that_this_side_ends_is_slow() -> None:
    connection, _, ends = connected()
    connection.data_received(SOME_HEADERS)
    connection.connection_lost(None)

    assert [True] == ends


async def test_a_client_that_gives_up_is_not_slow() -> None:
    connection, _, ends = connected()
    connection.data_received(SOME_HEADERS)
    connection.eof_received()
    connection.connection_lost(None)

    assert [False] == ends


async def test_a_connection_without_a_request_or_after_a_complete_one_is_not_slow() -> None:
    for sent in (b"", SOME_HEADERS):
        connection, _, ends = connected()
        if sent:
            connection.data_received(sent)
            connection.request_complete()
        connection.connection_lost(None)

        assert [False] == ends
