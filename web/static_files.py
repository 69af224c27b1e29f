"""The files of the status page, which are part of the package: each has an ETag, and a URL that changes with it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from aiohttp import web

CONTENT_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
NAMES: Final = ("favicon.svg", "idiomorph.min.js", "page.css", "page.js")
IMMUTABLE: Final = "private, max-age=31536000, immutable"
"""Private: the files need the token, too."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file."""

    body: bytes
    content_type: str
    digest: str


class StaticFiles:
    """All files, read once."""

    def __init__(self) -> None:
        self._files = {name: _read(name) for name in NAMES}

    @property
    def urls(self) -> Mapping[str, str]:
        """File → its URL, with its digest: a browser may keep it permanently."""
        return {name: f"/static/{name}?v={file.digest[:16]}" for name, file in self._files.items()}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer ``/static/{name}``."""
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound
        etag = f'"{file.digest[:32]}"'
        current = request.query.get("v") == file.digest[:16]
        headers = {"ETag": etag, "Cache-Control": IMMUTABLE if current else "private, no-cache"}
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, content_type=file.content_type, charset="utf-8", headers=headers)


def _read(name: str) -> StaticFile:
    body = files("web.page").joinpath("static", name).read_bytes()
    return StaticFile(body, CONTENT_TYPES[name.rpartition(".")[2]], hashlib.sha256(body).hexdigest())
