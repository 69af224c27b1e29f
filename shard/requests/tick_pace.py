"""Decide how long a leader waits before it checks its deadlines again. Pure.

1. A leader that writes checks every `TICK_INTERVAL_SECONDS`. A tick itself may leave work for the next one, such as
   more consumers to evict; its entries are being written then.
2. An idle leader waits longer: no deadline is exceeded by more than a tenth of the shortest duration, or by
   `IDLE_TICK_INTERVAL_SECONDS`. A daemon with hundreds of quiet shards would spend its idle time on their ticks.
"""

from typing import Final

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
