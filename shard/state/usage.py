"""How many topics, segments, subscriptions and consumers of a shard each user has. Part of the fold.

Counted with each change, so that a quota is judged without a scan. A segment belongs to the user who
created its topic, and a consumer to the user who registered it.
"""

from typing import Literal

from headgate.protocol.mqtt_topics import user_of
from shard.state.consumers import RegisteredConsumer
from shard.state.subscription import Subscription
from shard.state.topic import Topic

Owned = Literal["topics", "segments", "subscriptions", "consumers"]


class Usage(dict[tuple[str, Owned], int]):
    """(user, what) → how many; nothing is 0."""

    def add(self, user: str, owned: Owned, count: int) -> None:
        """Add ``count``, which may be negative."""
        total = self.get((user, owned), 0) + count
        if total:
            self[user, owned] = total
        else:
            self.pop((user, owned), None)

    def add_topic(self, topic: Topic, times: Literal[1, -1] = 1) -> None:
        self.add(topic.user, "topics", times)
        self.add(topic.user, "segments", times * len(topic.layout.segments))
        for subscription in topic.subscriptions.values():
            self.add_subscription(subscription, times)

    def add_subscription(self, subscription: Subscription, times: Literal[1, -1] = 1) -> None:
        self.add(subscription.user, "subscriptions", times)
        for consumer in subscription.consumers.values():
            self.add_consumer(consumer, times)

    def add_consumer(self, consumer: RegisteredConsumer | None, times: Literal[1, -1] = 1) -> None:
        if consumer is not None:
            self.add(user_of(consumer.client_id), "consumers", times)
