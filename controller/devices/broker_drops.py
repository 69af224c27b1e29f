"""Counts messages that the broker dropped, as mosquitto itself says on a topic below ``$SYS``.

The broker acknowledges a message before it drops it for a session whose queue is full. So neither the device nor the
leader notices. Every daemon counts the same number. Other brokers may not publish it, or may reject the filter.
"""

from typing import Final

import structlog

from metrics import events

DROPPED_TOPIC: Final = "$SYS/broker/publish/messages/dropped"

log = structlog.get_logger(__name__)


class BrokerDrops:
    """Follows the broker's counter, which begins again at 0 when the broker restarts."""

    def __init__(self, observer: events.Observer) -> None:
        self._observer = observer
        self._last: int | None = None

    def on_message(self, _topic: str, payload: bytes) -> None:
        """Take the counter's value; what was dropped before the first one is not counted."""
        if not payload.isdigit():
            return
        value, last = int(payload), self._last
        self._last = value
        if last is None or value == last:
            return
        dropped = value - last if value > last else value
        if dropped:
            self._observer.observe(events.BrokerDroppedMessages(messages=dropped))
            log.error(
                "broker.dropped_messages",
                messages=dropped,
                remedy="find who publishes more than the daemons store, or raise max_queued_messages and "
                "max_queued_bytes of the broker",
            )
