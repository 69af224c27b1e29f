"""Decide when the daemon collects cyclic garbage, and how much of it it looks at. Pure.

Python collects its oldest generation whenever that has grown by a quarter, and looks at every object of the process
then. That stalls the loop: for 0.1 to 0.7 s of processor time in a daemon with 375 000 producers and 40 000 segments.
So the daemon leaves only the two younger generations to Python (`controller.process.garbage_collection`). What one of
its collections leaves is frozen: the next collection of new objects does not look at it.

1. New objects are collected once `MAX_PROMOTIONS` collections of the younger generations have promoted what they left.
   One promotes 7 700 objects at most, so it takes some milliseconds.
2. The objects of a leader refer to each other, so an ended term is garbage, most of which is frozen. All objects are
   collected once `MAX_ENDED_TERMS` terms have ended. The largest part of a state is freed at once without a collection
   (`ShardState.release`).
3. All are collected `ALL_SECONDS` after the first term ended, or the first objects were frozen by a collection, since
   the last time: other objects become garbage after they were frozen, too.
"""

from dataclasses import dataclass
from typing import Final

from metrics.label_values import CollectionScope

MAX_PROMOTIONS: Final = 25
MAX_ENDED_TERMS: Final = 100
ALL_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class CollectionHistory:
    """What has happened since all objects were collected. Times are of one steady clock."""

    began_at: float | None = None
    """When the first of it happened; None: nothing has."""
    ended_terms: int = 0


def due(history: CollectionHistory, promotions: int, now: float) -> CollectionScope | None:
    """Return what to collect at ``now``. ``promotions``: collections of younger generations since the last one."""
    if history.ended_terms >= MAX_ENDED_TERMS:
        return "all"
    if history.began_at is not None and now - history.began_at >= ALL_SECONDS:
        return "all"
    return "new" if promotions >= MAX_PROMOTIONS else None
