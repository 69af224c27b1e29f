"""Sends large bodies over HTTP without blocking the event loop, and reads the small ones of requests."""

import asyncio
from typing import Final

from aiohttp import web

from web.access import ForbiddenError
from web.api.query import InvalidQueryError

READ_SECONDS: Final = 5.0
"""Longest wait for the body of a request."""

PIECE_BYTES: Final = 256 * 1024
"""Bytes of a body that are handed to the socket at a time."""


async def send_body(
    request: web.Request, body: bytes, content_type: str, charset: str | None = None, status: int = 200
) -> web.StreamResponse:
    """Send ``body`` in pieces: asyncio moves the rest of a body in memory each time that the socket takes a part."""
    response = web.StreamResponse(status=status)
    response.content_type, response.charset = content_type, charset
    response.content_length = len(body)
    await response.prepare(request)
    for start in range(0, 0 if request.method == "HEAD" else len(body), PIECE_BYTES):
        await response.write(body[start : start + PIECE_BYTES])
    await response.write_eof()
    return response


async def read_body(request: web.Request) -> bytes:
    """Return the body of a request that may change something. Raises RefusedError.

    A page of another site can make a browser send a form with the password. The browser then names that site as the
    origin; a bearer token is never added by a browser.
    """
    is_bearer = request.headers.get("Authorization", "").lower().startswith("bearer ")
    if not is_bearer and request.headers.get("Origin", "").partition("://")[2] != request.host:
        raise ForbiddenError("send the token as Authorization: Bearer; a browser must name this host as its Origin")
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise InvalidQueryError(f"the request was not complete within {READ_SECONDS:g} s") from None
