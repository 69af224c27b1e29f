"""Decide when the daemon collects cyclic garbage, and how much of it it looks at. Pure.

Python collects its oldest generation whenever that has grown by a quarter, and looks at every object of the
process then. That stalls the loop: for 0.1 to 0.3 s of processor time in a daemon with 250 000 producers and 25 000
segments. So the daemon leaves the two younger generations to Python only (`controller.garbage_collection`). What one of
its collections leaves is frozen: the next collection of new objects does not look at it.

1. New objects are collected once `MAX_PROMOTIONS` collections of the younger generations have promoted what they left.
   One promotes 7 700 objects at most, so it takes some milliseconds.
2. The objects of a leader refer to each other, and to the state of its shard, so an ended term is garbage, most of
   which is frozen. All objects are collected `TERM_SECONDS` after the last term has ended, because terms often end
   together, and at most `MAX_TERM_SECONDS` after the first.
3. Other objects become garbage after they were frozen, too. All are collected `ALL_SECONDS` after the first collection
   that froze some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metrics.label_values import CollectionScope

MAX_PROMOTIONS: Final = 25
TERM_SECONDS: Final = 10.0
MAX_TERM_SECONDS: Final = 60.0
ALL_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class CollectionHistory:
    """What has happened so far. All times are of one steady clock."""

    new_at: float | None = None
    """When new objects were collected for the first time since all were; None: they were not."""
    first_ended_at: float | None = None
    """When the first term ended since; None: none has."""
    last_ended_at: float | None = None


def due(history: CollectionHistory, promotions: int, now: float) -> CollectionScope | None:
    """Return what to collect at ``now``. ``promotions``: collections of younger generations since the last one."""
    first, last = history.first_ended_at, history.last_ended_at
    if first is not None and last is not None and (now - last >= TERM_SECONDS or now - first >= MAX_TERM_SECONDS):
        return "all"
    if history.new_at is not None and now - history.new_at >= ALL_SECONDS:
        return "all"
    return "new" if promotions >= MAX_PROMOTIONS else None
