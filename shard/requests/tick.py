"""Decide when a leader checks its deadlines again, and what it forgets of its producers then. Pure.

1. A leader that writes checks every `TICK_INTERVAL_SECONDS`. A tick itself may leave work for the next one, such as
   more consumers to evict; its entries are being written then.
2. An idle leader waits longer: no deadline is exceeded by more than a tenth of the shortest duration, or by
   `IDLE_TICK_INTERVAL_SECONDS`. A daemon with hundreds of quiet shards would spend its idle time on their ticks.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from headgate.model import entries as e
from shard.state.producers import MAX_EXPIRED_AT_ONCE, Producers, ProducerState

TICK_INTERVAL_SECONDS: Final = 0.25
"""Shortest pause between two ticks."""
IDLE_TICK_INTERVAL_SECONDS: Final = 1.0
"""Longest pause, which is also how often an idle leader checks for a successor."""
MAX_LATENESS: Final = 0.1
"""Part of the shortest duration by which a deadline may be exceeded."""


def tick_pause_seconds(*durations_seconds: float, idle: bool) -> float:
    """Return the pause before the next tick.

    ``durations_seconds``: how far deadlines are ahead when they begin. ``idle``: nothing is being written.
    """
    if not idle:
        return TICK_INTERVAL_SECONDS
    return min(IDLE_TICK_INTERVAL_SECONDS, max(TICK_INTERVAL_SECONDS, MAX_LATENESS * min(durations_seconds)))


def expired_producers(
    producers: Producers, *, age_ms: Callable[[int], int], idle_ms: int, max_anonymous: int, durable: int
) -> e.ProducersExpired | None:
    """Decide what a shard forgets of its producers.

    * An anonymous producer is forgotten when it has been idle for too long, or when there are too many: then the
      least recently used first.
    * Of a named producer only the deduplication window is dropped, after the same idle time. Its name, id, epoch,
      next sequence and source position stay until it is deleted.
    * Nothing that a batch in flight has used is forgotten: a repetition of the batch needs it.

    ``age_ms`` returns the age of a ledger time. ``durable``: the newest durable chunk.
    """

    def expired(group: Mapping[int, ProducerState], surplus: int) -> Iterator[int]:
        """Yield the ids of ``group``, least recently used first, until one that has to stay."""
        for index, (producer_id, producer) in enumerate(group.items()):
            expendable = index < surplus or age_ms(producer.last_at_ms) > idle_ms
            if not expendable or producer.last_chunk > durable:
                return
            yield producer_id

    surplus = len(producers.anonymous) - max_anonymous
    removed = list(islice(expired(producers.anonymous, surplus), MAX_EXPIRED_AT_ONCE))
    windows = list(islice(expired(producers.with_window, 0), MAX_EXPIRED_AT_ONCE))
    return e.ProducersExpired(producer_ids=removed, windows=windows) if removed or windows else None
