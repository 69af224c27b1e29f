"""Sends large bodies over HTTP without blocking the event loop."""

from typing import Final

from aiohttp import web

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
