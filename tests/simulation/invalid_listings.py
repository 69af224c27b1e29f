"""Listings of an external topic's segments that its leader must refuse, made from one that it must accept.

Each breaks one rule of `shard.requests.topic_import` and no other, so a leader that does not check this rule accepts it.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from headgate.protocol.requests import SegmentImport

HASH_BITS: Final = 8

Listing = Sequence[SegmentImport]


def invalid_updates(listing: Listing, known: Mapping[str, SegmentImport], acknowledged: int) -> dict[str, Listing]:
    """Return what is wrong → a listing, for an update of a topic with the segments ``known`` to ``listing``.

    ``acknowledged``: so many records of its newest parent are acknowledged.
    """
    segments = {each.segment: each for each in listing}
    new = [each for each in listing if each.segment not in known]
    parent = segments[new[-1].parents[0]]
    found: dict[str, Listing] = {"a parent is active": _with(listing, replace(parent, sealed=False, end_offset=None))}
    active = [each.segment for each in known.values() if not _is_sealed(each)]
    if len(known) > 1:
        found["an active segment is not listed"] = [each for each in known.values() if each.segment != active[0]]
    if acknowledged > 0:
        found["it ends before what is acknowledged"] = _with(listing, replace(parent, end_offset=acknowledged - 1))
    if sealed := [each for each in known.values() if _is_sealed(each)]:
        reopened = replace(sealed[0], sealed=False, end_offset=None)
        found["a sealed segment is active"] = _with(list(known.values()), reopened)
    if parent.hashes is not None:
        found |= _wrong_hashes(listing, parent, new)
    return found


def invalid_imports(positions: str, hash_bits: int) -> dict[str, Listing]:
    """Return what is wrong → a listing, for the import of a new topic."""
    hashes = ("0", str((1 << hash_bits) - 1)) if hash_bits else None
    first = SegmentImport(segment="a", hashes=hashes)
    wrong_end = replace(first, end_offset=5) if positions == "opaque" else replace(first, sealed=True)
    return {
        "its own parent": [replace(first, parents=["a"])],
        "listed twice": [first, first],
        "a parent that is not listed": [replace(first, parents=["b"])],
        "an end that the positions do not have": [wrong_end],
        "hashes that the source does not have": [replace(first, hashes=None if hash_bits else ("0", "1"))],
    }


def split_hashes(hashes: tuple[str, str] | None, rng: random.Random) -> tuple[tuple[str, str] | None, ...]:
    """Return the hashes of the two children of a segment, or of its one child if it has a single hash."""
    if hashes is None:
        return None, None
    first, last = map(int, hashes)
    if first == last:
        return (hashes,)
    middle = rng.randrange(first, last)
    return (hashes[0], str(middle)), (str(middle + 1), hashes[1])


def _wrong_hashes(listing: Listing, parent: SegmentImport, new: Listing) -> dict[str, Listing]:
    found: dict[str, Listing] = {"a new segment has no parents": _with(listing, replace(new[-1], parents=[]))}
    first, last = map(int, parent.hashes)
    if first < last:
        found["another range"] = _with(listing, replace(parent, hashes=(parent.hashes[0], str(last - 1))))
    newest = new[-1].hashes
    if newest[0] != newest[1]:
        found["a hash without an active segment"] = _with(
            listing, replace(new[-1], hashes=(newest[0], str(int(newest[1]) - 1)))
        )
    if swapped := _swapped_children(listing, parent, new):
        found["hashes that no parent had"] = swapped
    return found


def _swapped_children(listing: Listing, parent: SegmentImport, new: Listing) -> Listing | None:
    """Return a listing in which a neighbor is sealed too, and its only child takes a hash of the other's children."""
    active = [each for each in listing if not _is_sealed(each)]
    active.sort(key=lambda each: int(each.hashes[0]) if each.hashes else 0)
    children = {each.segment for each in new}
    for low, high in pairwise(active):
        if low.segment not in children or high.segment in children:
            continue
        assert high.hashes is not None
        if low.hashes[0] == low.hashes[1]:
            continue
        taken = low.hashes[1]
        child = SegmentImport(segment=f"{high.segment}x", parents=[high.segment], hashes=(taken, high.hashes[1]))
        end = None if parent.end_offset is None else 10**6
        sealed = replace(high, sealed=True, end_offset=end)
        return [*_with(_with(listing, sealed), replace(low, hashes=(low.hashes[0], str(int(taken) - 1)))), child]
    return None


def _with(listing: Listing, changed: SegmentImport) -> Listing:
    return [changed if each.segment == changed.segment else each for each in listing]


def _is_sealed(segment: SegmentImport) -> bool:
    return segment.sealed or segment.end_offset is not None
