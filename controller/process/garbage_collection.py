"""The garbage collector of a daemon's process: it runs when the loop can afford it.

`controller.process.collection_pace` decides when. This module sets up Python's collector while it is entered,
collects, and keeps restored states out of all collections. A collection stalls the loop, so each is observed.
"""

import gc
import time
from typing import Final, Self

import structlog

from controller.process.collection_pace import CollectionHistory, due
from metrics import events

NEVER: Final = 1 << 30
"""Threshold of a generation that Python does not collect automatically."""

log = structlog.get_logger(__name__)


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
