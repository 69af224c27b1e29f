"""The filters of one connection, and which handlers a message reaches."""

from collections.abc import Iterator

from paho.mqtt.matcher import MQTTMatcher

from headgate.transport.port import MessageHandler


class MessageRouter:
    """Filter → its handler, and whether that handler expects copies of retained messages."""

    def __init__(self) -> None:
        self.ignored_retained = 0
        """Copies of retained messages that arrived for filters which do not expect any."""
        self._handlers: dict[str, tuple[MessageHandler, bool]] = {}
        self._optional: set[str] = set()
        self._matcher = MQTTMatcher()
        """The same handlers. One lookup finds those of a topic, independent of the number of filters."""

    @property
    def filters(self) -> list[str]:
        return list(self._handlers)

    def add(self, topic_filter: str, handler: MessageHandler, *, retained: bool, optional: bool = False) -> None:
        """Add a filter, or give it another handler. ``optional``: the connection is useful without it."""
        if optional:
            self._optional.add(topic_filter)
        self._handlers[topic_filter] = self._matcher[topic_filter] = handler, retained

    def remove(self, topic_filter: str) -> None:
        if self._handlers.pop(topic_filter, None) is not None:
            del self._matcher[topic_filter]

    def is_optional(self, topic_filter: str) -> bool:
        return topic_filter in self._optional

    def expects_retained(self, topic_filter: str) -> bool:
        """Whether the broker shall send copies of retained messages for this filter."""
        return topic_filter in self._handlers and self._handlers[topic_filter][1]

    def handlers_of(self, topic: str, *, retained: bool) -> Iterator[MessageHandler]:
        """Yield the handlers of a message; ``retained``: it is a copy that the broker sent to a new subscription."""
        for handler, expects_retained in self._matcher.iter_match(topic):
            if retained and not expects_retained:
                self.ignored_retained += 1
            else:
                yield handler
