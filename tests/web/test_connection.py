"""Which end of a connection counts as a request that was too slow: `test_server_security` has the others."""

import asyncio
from unittest.mock import create_autospec

from aiohttp import web

from web.listener import HttpConnection


async def test_a_client_that_gives_up_is_not_slow() -> None:
    transport = create_autospec(asyncio.Transport, instance=True)
    transport.is_closing.return_value = False
    ends: list[bool] = []
    connection = HttpConnection(
        create_autospec(web.RequestHandler, instance=True), 0.0, lambda _, slow: ends.append(slow)
    )
    connection.connection_made(transport)
    connection.data_received(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
    connection.eof_received()
    connection.connection_lost(None)

    assert [False] == ends
