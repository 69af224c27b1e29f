"""Decides how large a trial is, and what each part of it is called and where it belongs. Pure.

Rules:

1. A scale multiplies every size, down to what every stage needs: three daemons, and a shard and a topic more.
2. Segments, consumers and producers are spread evenly: counts differ by at most one.
3. Heartbeats are so far apart that all consumers together send at most `MAX_HEARTBEATS_PER_SECOND`.
"""

from dataclasses import asdict, dataclass
from typing import Final

MAX_HEARTBEATS_PER_SECOND: Final = 250.0
"""All consumers together send no more: a few percent of two cores."""
SHORTEST_HEARTBEAT_SECONDS: Final = 5.0
"""The default of `subscriptions.heartbeat_interval_seconds`."""
HEARTBEATS_IN_GRACE: Final = 4
SUBSCRIPTION: Final = "readers"
"""Each topic has this one, of type STREAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    shards: int = 64
    daemons: int = 8
    topics: int = 1000
    segments: int = 100_000
    """Over all topics; each topic is created with its share."""
    consumers: int = 10_000
    """Over all topics; each reads its topic's only subscription."""
    producers: int = 1_000_000
    """Identities of anonymous producers, over all shards."""

    @property
    def heartbeat_seconds(self) -> float:
        """Interval between two heartbeats of one consumer (rule 3)."""
        return max(SHORTEST_HEARTBEAT_SECONDS, self.consumers / MAX_HEARTBEATS_PER_SECOND)

    @property
    def grace_seconds(self) -> float:
        """How long a silent consumer keeps its segments."""
        return max(60.0, HEARTBEATS_IN_GRACE * self.heartbeat_seconds)


FULL: Final = Sizes()
_FEWEST: Final = Sizes(shards=4, daemons=3, topics=4, segments=40, consumers=8, producers=200)


def scaled(scale: float) -> Sizes:
    """Return the sizes of a trial (rule 1)."""
    return Sizes(**{name: max(getattr(_FEWEST, name), round(size * scale)) for name, size in asdict(FULL).items()})


def share(total: int, parts: int, number: int) -> range:
    """Return which of ``total`` objects belong to part ``number`` of ``parts`` (rule 2)."""
    return range(total * number // parts, total * (number + 1) // parts)


def topic_name(number: int) -> str:
    return f"topic-{number:04d}"


def segments_of(sizes: Sizes, number: int) -> int:
    return len(share(sizes.segments, sizes.topics, number))


def topic_of(sizes: Sizes, consumer: int) -> int:
    """Return the topic that ``consumer`` reads. Consecutive ones read the same, and start together."""
    return consumer * sizes.topics // sizes.consumers
