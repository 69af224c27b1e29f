"""Decide what a shard forgets of its producers. Pure.

* An anonymous producer is forgotten when it has been idle for too long, or when there are too many:
  then the least recently used first.
* Of a named producer only the deduplication window is dropped, after the same idle time. Its name,
  id, epoch, next sequence and source position stay until it is deleted.
* Nothing that a batch in flight has used is forgotten: a repetition of the batch needs it.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from headgate.model import entries as e
from shard.state.producers import Producers, ProducerState

MAX_EXPIRED_AT_ONCE: Final = 2000
"""Producers per entry and kind: applying it takes a few milliseconds, and the rest follows with the next tick."""


def expired_producers(
    producers: Producers, *, age_ms: Callable[[int], int], idle_ms: int, max_anonymous: int, durable: int
) -> e.ProducersExpired | None:
    """Return what expires now, or None.

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
