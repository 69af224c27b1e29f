"""Distinct types for segments, offsets and generations, so that a type checker tells them apart."""

from __future__ import annotations

from typing import Final, NewType

SegmentId = NewType("SegmentId", int)
"""Number of a segment inside its topic, from 0. It is never used again."""
Offset = NewType("Offset", int)
"""Number of a record inside its segment, from 0, without gaps."""
Generation = NewType("Generation", int)
"""Number of a grant. Of two holders of the same keys, the one with the higher generation is
valid."""

ANONYMOUS: Final = "anonymous"
"""The user of a client that gives the broker no user name."""
