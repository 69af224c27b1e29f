"""Decide of which followed shards a daemon keeps the state in memory. Pure.

A shard whose state is kept is *warm*: a new term reads only the chunks of the last second. Of the others the daemon
follows the terms, and a new term begins with the newest snapshot.

Rules:

1. The states of warm shards fit into the limit together.
2. Shards that this daemon takes over next come first: it is the first one behind their leader in the queue.
3. Among equals, those that are warm already come first, so that nothing is read again without a gain; then the lower
   number.
4. A shard that does not fit is left out, and smaller ones behind it may still fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FollowedShard:
    """A shard that another daemon leads."""

    shard: int
    size_bytes: int
    """Of its state, when it was last in memory; 0: it never was."""
    next_in_queue: bool = False
    warm: bool = False


def warm_shards(followed: Iterable[FollowedShard], limit_bytes: int) -> frozenset[int]:
    """Return the shards whose state to keep, or to read."""
    chosen: set[int] = set()
    left_bytes = limit_bytes
    for each in sorted(followed, key=lambda each: (not each.next_in_queue, not each.warm, each.shard)):
        if each.size_bytes <= left_bytes:
            left_bytes -= each.size_bytes
            chosen.add(each.shard)
    return frozenset(chosen)
