"""The topics of the broker that headgate speaks on, as functions of cluster, shard and client. Pure.

docs/protocol.md tells who publishes to each of them, and a test holds the two together.
"""

from __future__ import annotations


def cluster_topic(cluster: str) -> str:
    """Retained `ClusterDescription`."""
    return f"headgate/{cluster}/cluster"


def requests_topic(cluster: str, shard: int) -> str:
    """Client → leader."""
    return f"headgate/{cluster}/shards/{shard}/requests"


def replies_topic(cluster: str, client_id: str) -> str:
    """Leader → client."""
    return f"headgate/{cluster}/clients/{client_id}/replies"


def presence_topic(cluster: str, client_id: str) -> str:
    """Retained `Presence`; the last will says "gone". With ``+`` as the client: everybody's."""
    return f"headgate/{cluster}/clients/{client_id}/presence"


def leader_topic(cluster: str, shard: int) -> str:
    """Retained `LeaderAnnouncement`."""
    return f"headgate/{cluster}/shards/{shard}/leader"


def head_topic(cluster: str, shard: int) -> str:
    """`HeadAnnouncement` after commits, so that consumers read on."""
    return f"headgate/{cluster}/shards/{shard}/head"


def device_sentinel_topic(cluster: str, shard: int) -> str:
    """Leader → itself, behind what waits for it from plain devices: when it comes, that has come."""
    return f"headgate/{cluster}/shards/{shard}/device-sentinels"


def publish_filter(cluster: str, topic: str) -> str:
    """Everything that plain devices publish to ``topic``; the levels after it are the key."""
    return f"headgate/{cluster}/publish/{topic}/#"


def parse_publish_address(cluster: str, mqtt_topic: str) -> tuple[str, str]:
    """Return (topic, key) of what a device published to ``mqtt_topic``, which matches a `publish_filter`.

    The key is all that follows the topic's name, further slashes included; it is empty where nothing follows.
    """
    topic, _, key = mqtt_topic.removeprefix(f"headgate/{cluster}/publish/").partition("/")
    return topic, key
