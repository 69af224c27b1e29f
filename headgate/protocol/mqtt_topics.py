"""MQTT topics as functions of cluster, shard and client; docs/protocol.md lists the publishers.

The *address* of a client is ``<user>/<client id>``. It is part of the topics on which the client
publishes, so that the broker's access control vouches for the user.
"""

from typing import Literal, NamedTuple

from headgate.model.identifiers import ANONYMOUS


def client_address(user: str | None, client_id: str) -> str:
    """Return the address of a client. ``user`` None: it gives the broker no user name."""
    return f"{user or ANONYMOUS}/{client_id}"


def user_of(address: str) -> str:
    return address.partition("/")[0]


def client_of(address: str) -> str:
    return address.partition("/")[2]


def cluster_topic(cluster: str) -> str:
    """Retained `ClusterDescription`."""
    return f"headgate/{cluster}/cluster"


def requests_topic(cluster: str, shard: int, address: str) -> str:
    """Client → leader."""
    return f"headgate/{cluster}/shards/{shard}/requests/{address}"


def requests_filter(cluster: str, shard: int) -> str:
    return requests_topic(cluster, shard, "+/+")


def sender_of_request(mqtt_topic: str) -> str:
    """Return the address of the client that published to ``mqtt_topic``, which matches `requests_filter`."""
    return "/".join(mqtt_topic.rsplit("/", 2)[1:])


def replies_topic(cluster: str, address: str) -> str:
    """Leader → client."""
    return f"headgate/{cluster}/clients/{address}/replies"


def presence_topic(cluster: str, address: str) -> str:
    """`Presence`, also the last will."""
    return f"headgate/{cluster}/clients/{address}/presence"


def presence_filter(cluster: str) -> str:
    return presence_topic(cluster, "+/+")


def sender_of_presence(mqtt_topic: str) -> str:
    """Return the address of the client that published to ``mqtt_topic``, which matches `presence_filter`."""
    return "/".join(mqtt_topic.rsplit("/", 3)[1:3])


def leader_topic(cluster: str, shard: int | Literal["+"]) -> str:
    """Retained `LeaderAnnouncement`. ``+`` is a filter for all shards."""
    return f"headgate/{cluster}/shards/{shard}/leader"


def head_topic(cluster: str, shard: int) -> str:
    """`HeadAnnouncement` after each commit, so that consumers continue reading."""
    return f"headgate/{cluster}/shards/{shard}/head"


def chunk_topic(cluster: str, shard: int) -> str:
    """`ChunkAnnouncement` of each small chunk, while a consumer follows the end of the shard."""
    return f"headgate/{cluster}/shards/{shard}/chunk"


def daemon_client_id(cluster: str, instance: str) -> str:
    """Public part of a daemon's client id. Names contain no colon, so no other client and cluster has the same one."""
    return f"headgate:{cluster}:daemon:{instance}"


def device_session_id(cluster: str, shard: int, topic_id: int, first_term: int) -> str:
    """Public part of the client id of the session that stores the messages of MQTT devices to one topic.

    ``first_term``: id of the shard's first term. A copy of a ledger has the same one, and another ledger has not.
    """
    return f"headgate:{cluster}:shard:{shard}:topic:{topic_id}:{first_term:016x}"


def device_sentinel_topic(cluster: str, shard: int, topic_id: int) -> str:
    """Leader → itself: a sentinel arrives after every earlier message of MQTT devices in the same session."""
    return f"headgate/{cluster}/shards/{shard}/device-sentinels/{topic_id}"


def publish_filters(cluster: str, topic: str) -> frozenset[str]:
    """Return filters for everything that MQTT devices publish to ``topic``; the levels after the topic are the key.

    What a device publishes below its user may ask for a confirmation.
    """
    return frozenset((f"headgate/{cluster}/publish/{topic}/#", f"headgate/{cluster}/devices/+/publish/{topic}/#"))


def all_publications_filters(cluster: str) -> tuple[str, str]:
    """Return filters for everything that MQTT devices publish, also to topics that do not exist."""
    return f"headgate/{cluster}/publish/#", f"headgate/{cluster}/devices/+/publish/#"


def confirmations_prefix(cluster: str, user: str) -> str:
    """Return the beginning of every topic on which a device of ``user`` can get confirmations."""
    return f"headgate/{cluster}/devices/{user}/replies/"


class PublishAddress(NamedTuple):
    topic: str
    """Empty, as ``key``: nothing follows."""
    key: str
    """Everything after the name of the topic, including further slashes."""
    user: str | None
    """The user in whose name it was published, for whom the broker vouches; None: none."""


def parse_publish_address(cluster: str, mqtt_topic: str) -> PublishAddress:
    """Return what ``mqtt_topic`` says, which matches one of `all_publications_filters`."""
    rest, user = mqtt_topic.removeprefix(f"headgate/{cluster}/"), None
    if rest.startswith("devices/"):
        _, user, rest = rest.split("/", 2)
    topic, _, key = rest.removeprefix("publish").removeprefix("/").partition("/")
    return PublishAddress(topic, key, user)
