"""Decides whether a consumer may speak for what it names: its registration, and its grants. Pure."""

from headgate.model.hashing import SegmentSlice, segment_of
from shard.state.subscription import Subscription


def consumer_error(subscription: Subscription, consumer: str, incarnation: int) -> str | None:
    """Return why this instance of ``consumer`` is no member of the subscription; None: it is."""
    known = subscription.consumers.get(consumer)
    if known is None:
        return f"consumer {consumer!r} is not registered"
    if known.incarnation != incarnation:
        return f"consumer {consumer!r} is now incarnation {known.incarnation}, not {incarnation}"
    return None


class Claims:
    """The grants of one consumer. The texts about other holders are made once for a whole request."""

    def __init__(self, subscription: Subscription, consumer: str) -> None:
        self._subscription = subscription
        self._consumer = consumer
        self._described: dict[int, str] | None = None

    def held(self, segment: int, generation: int) -> SegmentSlice | str:
        """Return the slice that the consumer holds at this generation, or that it does not. Revoked slices are held."""
        held = self._subscription.holdings.held_at(segment, generation)
        if held is not None and self._subscription.holdings[held].consumer == self._consumer:
            return held
        holders = self._holders(segment)
        return f"segment {segment} is held by {holders}, not by {self._consumer!r} at generation {generation}"

    def _holders(self, segment: int) -> str:
        if self._described is None:
            found: dict[int, list[str]] = {}
            for held, holding in sorted(self._subscription.holdings.items()):
                text = f"{holding.consumer!r} at generation {holding.generation}"
                found.setdefault(segment_of(held), []).append(text)
            self._described = {each: " and ".join(texts) for each, texts in found.items()}
        return self._described.get(segment, "no consumer")
