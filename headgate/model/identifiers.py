"""Names of the numbers in the API. They are plain integers: the values of replies are the values of the API."""

from typing import Final, TypeAlias

SegmentId: TypeAlias = int
"""Number of a segment inside its topic, from 0. It is never used again."""
Offset: TypeAlias = int
"""Number of a record inside its segment, from 0, without gaps."""
Generation: TypeAlias = int
"""Number of a grant. Of two holders of the same keys, the one with the higher generation is valid."""

NUMBER_BITS: Final = 16
"""Bits of the id of a topic or subscription below those of the term that gave it, which are random.

A larger number changes these, too; an id stays below 2^53, which JSON readers need.
"""
DEAD_LETTERS: Final = "dead-letters-"
"""How the name begins of a subscription without consumers, for which a dead-letter topic keeps what is open."""
ANONYMOUS: Final = "anonymous"
"""The user of a client that gives the broker no user name."""


def keeper_of(shard: int, subscription_id: int) -> str:
    """Return the subscription of a dead-letter topic that keeps the open dead letters of another subscription."""
    return f"{DEAD_LETTERS}{shard}-{subscription_id}"
