"""Reduces a list of parts to the fewest with which something still fails: delta debugging, as by Zeller and Hildebrandt (2002).

Pure, except for the question that is asked: whether a selection still fails. Removes halves, then quarters, and so on down
to single parts, and starts again after each success, so no single part of the result can be left out.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

PartT = TypeVar("PartT")


def shrink(parts: Sequence[PartT], still_fails: Callable[[Sequence[PartT]], bool]) -> list[PartT]:
    """Return a selection of ``parts``, in order, that fails while none of its parts can be left out.

    ``parts`` themselves fail; they are not tried. ``still_fails`` may answer no to everything from some time on, for
    example when its time is over. The selection is then the smallest so far.
    """
    kept = list(parts)
    pieces = min(2, len(kept))
    while kept:
        removed = False
        for first, end in _bounds(len(kept), pieces):
            rest = kept[:first] + kept[end:]
            if still_fails(rest):
                kept, removed = rest, True
                break
        if removed:
            pieces = max(1, min(pieces - 1, len(kept)))
        elif pieces >= len(kept):
            break
        else:
            pieces = min(2 * pieces, len(kept))
    return kept


def _bounds(length: int, pieces: int) -> list[tuple[int, int]]:
    """Return (first, end) of ``pieces`` nearly equal pieces, the last first: what happened late matters least."""
    ends = [length * number // pieces for number in range(pieces + 1)]
    return list(itertools.pairwise(ends))[::-1]
