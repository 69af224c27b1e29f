"""The files of the status page, which are part of the package: each has a URL that changes with its content."""

import hashlib
from pathlib import Path
from typing import Final

from aiohttp import web

FOLDER: Final = Path(__file__).parent / "page" / "static"
NAMES: Final = ("favicon.svg", "idiomorph.min.js", "page.css", "page.js")
IMMUTABLE: Final = "private, max-age=31536000, immutable"
"""Private: the files need the token, too."""


class StaticFiles:
    """All files."""

    def __init__(self) -> None:
        self.urls = {name: f"/static/{name}?v={_digest(name)}" for name in NAMES}
        """File → its URL, with its digest: a browser may keep it permanently."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer ``/static/{name}``."""
        name = request.match_info["name"]
        if name not in self.urls:
            raise web.HTTPNotFound
        caching = IMMUTABLE if request.path_qs == self.urls[name] else "private, no-cache"
        return web.FileResponse(FOLDER / name, headers={"Cache-Control": caching})


def _digest(name: str) -> str:
    return hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:16]
