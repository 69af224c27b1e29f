"""An observer of events that does nothing, for components without metrics."""

from metrics.events import Event


class NoopObserver:
    def observe(self, event: Event) -> None:
        """See `metrics.events.Observer`."""
