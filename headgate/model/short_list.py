"""Lists in texts and log lines, with the first items and how many others there are, and plurals. Pure."""

from collections.abc import Collection
from itertools import islice
from typing import Final

MAX_SHOWN: Final = 10


def short_list(items: Collection[object], shown: int = MAX_SHOWN) -> list[object]:
    """Return the first ``shown`` of ``items``; if there are more, a last text says how many."""
    more = len(items) - shown
    return [*islice(items, shown), *([f"… and {more} more"] if more > 0 else [])]


def listed(items: Collection[object], shown: int = MAX_SHOWN, separator: str = ", ") -> str:
    return separator.join(map(str, short_list(items, shown)))


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
