"""Cut a list into pages, so that neither a reply nor the work for it grows with the shard. Pure.

An item that is larger than a page is a page of its own. A cursor joins the names of an item with
slashes, which names do not contain.
"""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import msgspec

from headgate.protocol.codec import encode

PAGE_BYTES: Final = 256 * 1024
"""Encoded items of one page. A client that lists everything needs one request per page."""

ItemT = TypeVar("ItemT", bound=msgspec.Struct)


def follows(after: str | None, *names: str) -> bool:
    """Return whether the item with ``names`` is behind the cursor ``after``; None is the start of the list."""
    return after is None or names > tuple(after.split("/"))


class Page(Generic[ItemT]):
    """The first items of a list, as many as fit. It is full with the item that does not fit, which it leaves out."""

    def __init__(self, page_bytes: int = PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._size = 0
        self._last: tuple[str, ...] = ()
        self.items: list[ItemT] = []
        self.is_full = False

    def add(self, names: tuple[str, ...], item: ItemT) -> bool:
        """Return whether the page is full."""
        self._size += len(encode(item))
        if self.items and self._size > self._page_bytes:
            self.is_full = True
        else:
            self.items.append(item)
            self._last = names
        return self.is_full

    @property
    def following(self) -> str | None:
        return "/".join(self._last) if self.is_full else None


def cut_page(
    items: Iterable[tuple[tuple[str, ...], ItemT]], page_bytes: int = PAGE_BYTES
) -> tuple[list[ItemT], str | None]:
    """Return the first items, and the cursor of the next page; None: there is none.

    ``items``: (names, item) in ascending order of the names. A generator builds only the items of
    this page and one more.
    """
    page: Page[ItemT] = Page(page_bytes)
    for names, item in items:
        if page.add(names, item):
            break
    return page.items, page.following
