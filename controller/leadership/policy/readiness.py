"""Decide whether a daemon can do a leader's work, as the spread of shards sees it. Pure.

A leader needs the broker, and a store that accepts its writes.

1. ``no_broker``, ``no_store``: the daemon has lacked it for `BROKER_LOST_SECONDS` or `STORE_LOST_SECONDS`. It gives its
   shards away. The first is longer than the pauses between its attempts to connect, and much shorter than
   ``ingest.unreachable_seconds``, which ends its terms.
2. ``ready``: it has had both for `STABLE_SECONDS`. After a restart of the broker the daemons connect one after the
   other, and none of them is there for the shards of one that is a little later.
3. ``doubtful``: neither.

While one daemon is not ready the others often try a write. So within `STORE_LOST_SECONDS` they find out whether the
store fails for all of them: then no shard moves.
"""

from dataclasses import dataclass
from typing import Final, Literal

Readiness = Literal["ready", "doubtful", "no_broker", "no_store"]

LACKS: Final = {"no_broker": "does not reach the broker", "no_store": "cannot write to the store"}
"""What a daemon lacks that gives its shards away."""

BROKER_LOST_SECONDS: Final = 2.5
STORE_LOST_SECONDS: Final = 25.0
"""Longer than it takes others to see that one is not ready, to try a write, and to register that it failed."""
STABLE_SECONDS: Final = 6.0
"""Longer than an attempt to connect that gets no answer (3 s), and the pause after it."""


@dataclass(slots=True)
class Contact:
    """Whether a server works for this daemon, and since when."""

    works: bool
    since: float

    def note(self, *, works: bool, now: float) -> None:
        if works != self.works:
            self.works, self.since = works, now


@dataclass(frozen=True, slots=True)
class Servers:
    broker: Contact
    store: Contact


def readiness(servers: Servers, now: float) -> Readiness:
    broker, store = servers.broker, servers.store
    if not broker.works and now - broker.since >= BROKER_LOST_SECONDS:
        return "no_broker"
    if not store.works and now - store.since >= STORE_LOST_SECONDS:
        return "no_store"
    stable = all(each.works and now - each.since >= STABLE_SECONDS for each in (broker, store))
    return "ready" if stable else "doubtful"
