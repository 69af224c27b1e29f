"""The garbage collector of a daemon's process: it runs when the loop can afford it.

Python collects its oldest generation whenever that has grown by a quarter, and looks at every object of the process
then. That stalls the loop: for 0.1 to 0.7 s of processor time in a daemon with 375 000 producers and 40 000 segments.
So `GarbageCollection` leaves only the two younger generations to Python, keeps restored states out of all collections,
and collects when `due` says so. Each collection is observed. What it leaves is frozen: the next collection of new
objects does not look at it.

1. New objects are collected once `MAX_PROMOTIONS` collections of the younger generations have promoted what they left.
   One promotes 7 700 objects at most, so it takes some milliseconds.
2. The objects of a leader refer to each other, so an ended term is garbage, most of which is frozen. All objects are
   collected once `MAX_ENDED_TERMS` terms have ended. The largest part of a state is freed at once without a collection
   (`ShardState.release`).
3. All are collected `ALL_SECONDS` after the first term ended, or the first objects were frozen by a collection, since
   the last time: other objects become garbage after they were frozen, too.
"""

import gc
import time
from dataclasses import dataclass
from typing import Final, Self

import structlog

from metrics import events
from metrics.label_values import CollectionScope

NEVER: Final = 1 << 30
"""Threshold of a generation that Python does not collect automatically."""

log = structlog.get_logger(__name__)

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


class GarbageCollection:
    """One per process. Times are those of the loop's clock, in seconds."""

    def __init__(self, observer: events.Observer) -> None:
        self._observer = observer
        self._history = CollectionHistory()
        self._terms_ended = 0
        self._thresholds = gc.get_threshold()

    def __enter__(self) -> Self:
        """Leave Python's oldest generation alone, and freeze what the program's start has left."""
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], NEVER)
        gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what is frozen as it is: the process ends, and Python's last collections need not look at it."""
        gc.set_threshold(*self._thresholds)

    def keep(self) -> None:
        """Freeze all objects without looking at them: a state was restored, and will live for long."""
        gc.freeze()

    def collect_if_due(self, terms_ended: int, now: float) -> None:
        """Collect what is due. ``terms_ended``: how many terms of this process have ended so far."""
        history = self._history
        if terms_ended > self._terms_ended:
            history = self._history = CollectionHistory(
                now if history.began_at is None else history.began_at,
                history.ended_terms + terms_ended - self._terms_ended,
            )
            self._terms_ended = terms_ended
        scope = due(history, gc.get_count()[2], now)
        if scope is None:
            return
        began = time.perf_counter()
        if scope == "all":
            gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        seconds = time.perf_counter() - began
        if scope == "all":
            self._history = CollectionHistory()
        elif history.began_at is None:
            self._history = CollectionHistory(now)
        self._observer.observe(events.GarbageCollected(scope=scope, seconds=seconds))
        log.debug("garbage.collected", scope=scope, objects=found, seconds=round(seconds, 3))
