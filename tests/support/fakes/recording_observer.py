"""An observer that keeps every event, for tests that compare them."""

from typing import TypeVar

from metrics.events import Event

E = TypeVar("E", bound=Event)


class RecordingObserver:
    """Keeps every event, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)

    def of(self, event_type: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, event_type)]
