"""Decide whether a daemon reaches the broker, as the spread of shards sees it. Pure.

1. ``lost``: it has had no connection for `LOST_SECONDS`, longer than the pauses between its attempts. It gives its
   shards away, long before ``ingest.unreachable_seconds`` end its terms.
2. ``reached``: it has been connected for `STABLE_SECONDS`. After a restart of the broker the daemons connect one after
   the other, and none of them is there for the shards of one that is a little later.
3. ``doubtful``: neither.
"""

from __future__ import annotations

from typing import Final, Literal

BrokerContact = Literal["reached", "doubtful", "lost"]

LOST_SECONDS: Final = 2.5
STABLE_SECONDS: Final = 6.0
"""Longer than an attempt to connect that gets no answer (3 s), and the pause after it."""


def broker_contact(*, connected: bool, seconds: float) -> BrokerContact:
    """Return the contact of a daemon that has been connected, or not, for ``seconds``."""
    if connected:
        return "reached" if seconds >= STABLE_SECONDS else "doubtful"
    return "lost" if seconds >= LOST_SECONDS else "doubtful"
