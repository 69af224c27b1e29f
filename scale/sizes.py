"""Decides how large a trial is, and what each part of it is called and where it belongs. Pure.

Rules:

1. A scale multiplies every size; a size that the user gives is taken as it is.
2. What is multiplied stays large enough for every stage: two daemons, and a shard for each of them.
3. Segments, consumers and producers are spread evenly: counts differ by at most one.
4. Heartbeats are so far apart that all consumers together send at most `MAX_HEARTBEATS_PER_SECOND`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from headgate.errors import ConfigError

MAX_SEGMENTS_PER_TOPIC: Final = 1024
"""Of the request that creates a topic."""
MAX_CONSUMERS_PER_TOPIC: Final = 1000
"""Of one subscription."""
MAX_HEARTBEATS_PER_SECOND: Final = 250.0
"""Of all consumers together: a few percent of two cores."""
SHORTEST_HEARTBEAT_SECONDS: Final = 5.0
"""The default of `subscriptions.heartbeat_interval_seconds`."""
HEARTBEATS_IN_GRACE: Final = 4
SUBSCRIPTION: Final = "readers"
"""Each topic has this one, of type STREAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many of each a trial has."""

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
        """Interval between two heartbeats of one consumer (rule 4)."""
        return max(SHORTEST_HEARTBEAT_SECONDS, self.consumers / MAX_HEARTBEATS_PER_SECOND)

    @property
    def grace_seconds(self) -> float:
        """How long a silent consumer keeps its segments."""
        return max(60.0, HEARTBEATS_IN_GRACE * self.heartbeat_seconds)


FULL: Final = Sizes()
_FEWEST: Final = Sizes(shards=2, daemons=2, topics=1, segments=1, consumers=0, producers=1)


def planned_sizes(scale: float, given: Mapping[str, int | None]) -> Sizes:
    """Return the sizes of a trial. ``given``: size → what the user asked for, or None.

    Raises ConfigError if the sizes contradict each other.
    """
    scaled = {name: max(getattr(_FEWEST, name), round(size * scale)) for name, size in asdict(FULL).items()}
    scaled["shards"] = max(scaled["shards"], scaled["daemons"])
    scaled["segments"] = max(scaled["segments"], scaled["topics"])
    sizes = replace(Sizes(**scaled), **{name: size for name, size in given.items() if size is not None})
    if sizes.shards < sizes.daemons:
        raise ConfigError(f"--shards {sizes.shards} is below --daemons {sizes.daemons}: each daemon is to lead one")
    if sizes.segments < sizes.topics:
        raise ConfigError(f"--segments {sizes.segments} is below --topics {sizes.topics}: each topic has one or more")
    if sizes.segments > sizes.topics * MAX_SEGMENTS_PER_TOPIC:
        raise ConfigError(
            f"--segments {sizes.segments} is above {MAX_SEGMENTS_PER_TOPIC} for each of --topics {sizes.topics}"
        )
    if sizes.consumers > sizes.topics * MAX_CONSUMERS_PER_TOPIC:
        raise ConfigError(
            f"--consumers {sizes.consumers} is above {MAX_CONSUMERS_PER_TOPIC} for each of --topics {sizes.topics}"
        )
    return sizes


def share(total: int, parts: int, number: int) -> range:
    """Return which of ``total`` objects belong to part ``number`` of ``parts`` (rule 3)."""
    return range(total * number // parts, total * (number + 1) // parts)


def topic_name(number: int) -> str:
    """Return the name of a topic."""
    return f"topic-{number:04d}"


def segments_of(sizes: Sizes, number: int) -> int:
    """Return with how many segments topic ``number`` is created."""
    return len(share(sizes.segments, sizes.topics, number))


def readable_segments(sizes: Sizes, splits: int) -> int:
    """Return how many segments have readers, if one segment of each of the first ``splits`` topics is split."""
    read = {topic_of(sizes, consumer) for consumer in range(sizes.consumers)}
    return sum(segments_of(sizes, topic) + (topic < splits) for topic in read)


def topic_of(sizes: Sizes, consumer: int) -> int:
    """Return the topic that ``consumer`` reads. Consecutive consumers read the same one, as they start together."""
    return consumer * sizes.topics // sizes.consumers
