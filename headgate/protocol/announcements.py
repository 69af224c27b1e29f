"""Announcements that daemons and clients publish. The MQTT topic identifies the kind of each."""

from hashlib import blake2b
from hmac import compare_digest
from typing import Final, Self

import msgspec

from headgate.protocol.request_fields import Epoch, LedgerId, LedgerIdText

_KEY_BYTES: Final = 8
_CODE_BYTES: Final = 16


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retained: what a client needs to know about the cluster.

    ``earlier_shards``: numbers of shards that it has had before ``shards``, rising. Topics of these times stay there.
    ``ledger_id``: the random id of its ledger; empty while the daemon does not know it.
    """

    protocol: int
    shards: int
    ledger_url: str
    ledger_id: LedgerIdText = ""
    earlier_shards: list[int] = []


class LeaderAnnouncement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retained per shard: the current leader, and what it supports. Clients do not believe it; they ask.

    ``window``: finished batches that the leader remembers per producer, hence the most that a
    producer may have in flight.
    """

    shard: int
    leader_epoch: Epoch
    instance: str
    window: int
    ledger_id: LedgerId = b""


class HeadAnnouncement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest durable chunk of a shard."""

    shard: int
    leader_epoch: int
    head: int
    ledger_id: LedgerId = b""


class ChunkAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """A small chunk as it is stored, once it is durable: consumers at the end of the shard need not read it.

    Any program may be able to publish to the topic. ``code``: BLAKE2b of ``object``, keyed with what the leader of term
    ``term_id`` states in replies only (`HeartbeatReply.chunk_key`).
    """

    shard: int
    term_id: int
    number: int
    object: bytes
    code: bytes

    @classmethod
    def of(cls, data: bytes, *, shard: int, number: int, term_id: int, key: int) -> Self:
        return cls(shard=shard, term_id=term_id, number=number, object=data, code=_code(data, key))

    def is_authentic(self, key: int) -> bool:
        """Return whether a program that knows ``key`` made it. The object itself states its shard and its number."""
        return compare_digest(self.code, _code(self.object, key))


def _code(data: bytes, key: int) -> bytes:
    return blake2b(data, key=key.to_bytes(_KEY_BYTES), digest_size=_CODE_BYTES).digest()


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a client is connected. The broker publishes ``online`` False as the client's last will.

    ``incarnation`` rises with each start of the program. It shows that two running programs use one
    client id. None: the client does not take part in that check.
    """

    client_id: str
    online: bool
    incarnation: int | None = None
