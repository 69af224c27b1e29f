"""Cut a list into pages, so that neither a reply nor the work for it grows with the shard. Pure.

An item that is larger than a page is a page of its own. A cursor joins the names of an item with
slashes, which names do not contain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from headgate.protocol.codec import encode

PAGE_BYTES: Final = 256 * 1024
"""Encoded items of one page. A client that lists everything needs one request per page."""

ItemT = TypeVar("ItemT", bound=msgspec.Struct)


def follows(after: str | None, *names: str) -> bool:
    """Return whether the item with ``names`` is behind the cursor ``after``; None is the start of the list."""
    return after is None or names > tuple(after.split("/"))


def cut_page(
    items: Iterable[tuple[tuple[str, ...], ItemT]], page_bytes: int = PAGE_BYTES
) -> tuple[list[ItemT], str | None]:
    """Return the first items, and the cursor of the next page; None: there is none.

    ``items``: (names, item) in ascending order of the names. A generator builds only the items of
    this page and one more.
    """
    page: list[ItemT] = []
    size = 0
    last_names: tuple[str, ...] = ()
    for names, item in items:
        size += len(encode(item))
        if page and size > page_bytes:
            return page, "/".join(last_names)
        page.append(item)
        last_names = names
    return page, None
