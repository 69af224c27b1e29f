"""Announcements that daemons and clients publish. The MQTT topic identifies the kind of each."""

import msgspec

from headgate.protocol.request_fields import Epoch


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retained: what a client needs to know about the cluster.

    ``earlier_shards``: numbers of shards that it has had before ``shards``, rising. Topics of these times stay there.
    ``ledger_id``: the random id of its ledger; empty while the daemon does not know it.
    """

    protocol: int
    shards: int
    ledger_url: str
    ledger_id: str = ""
    earlier_shards: list[int] = []


class LeaderAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """Retained per shard: the current leader, and what it supports. Clients do not believe it; they ask.

    ``window``: finished batches that the leader remembers per producer, hence the most that a
    producer may have in flight.
    """

    shard: int
    leader_epoch: Epoch
    instance: str
    window: int


class HeadAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """The newest durable chunk of a shard."""

    shard: int
    leader_epoch: int
    head: int


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a client is connected. The broker publishes ``online`` False as the client's last will.

    ``incarnation`` rises with each start of the program. It shows that two running programs use one
    client id. None: the client does not take part in that check.
    """

    client_id: str
    online: bool
    incarnation: int | None = None
