"""MQTT topics, what is announced on them, and how messages are encoded; docs/protocol.md lists the publishers.

The *address* of a client is ``<user>/<client id>``. It is part of the topics on which the client
publishes, so that the broker's access control vouches for the user.

Decoders accept any bytes: whatever is wrong with them surfaces as `msgspec.DecodeError`. Messages that are too large
are cut into parts and pages.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec
from mmh3 import mmh3_x64_128_digest

from headgate.model.identifiers import ANONYMOUS
from headgate.protocol.replies import AnyReply, MessagePart
from headgate.protocol.request_fields import Epoch, LedgerId, LedgerIdText, Natural
from headgate.protocol.requests import ProduceBatch, Request

_KEY_BYTES: Final = 8
_CODE_BYTES: Final = 16
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Limit for the payload of any message. A leader does not decode larger requests, even if the broker lets them pass."""
encode = msgspec.msgpack.Encoder().encode
"""Return a message as bytes."""
_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLY: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)
Message = TypeVar("Message")
PART_BYTES: Final = 512 * 1024
"""A larger message is sent in parts of this size. Common brokers accept packets of 1 MB and more."""
MAX_PARTS: Final = 64
MAX_REPLY_BYTES: Final = PART_BYTES * MAX_PARTS
"""Limit for one reply or push in all its parts; half of what a transport lets wait."""
PAGE_BYTES: Final = 256 * 1024
"""Encoded items of one page. A client that lists everything needs one request per page."""
ItemT = TypeVar("ItemT", bound=msgspec.Struct)
MURMUR_DIGEST_BYTES: Final = 8
SHA_DIGEST_BYTES: Final = 16
"""Lengths of batch digests, which tell their algorithms. The longer ones are written below feature level 3."""


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

    Any program may be able to publish to the topic. ``code``: BLAKE2b of ``number`` and ``object``, keyed with what the
    leader of term ``term_id`` states in replies only (`HeartbeatReply.chunk_key`). By it, a chunk is durable.
    """

    shard: int
    term_id: int
    number: Natural
    object: bytes
    code: bytes

    @classmethod
    def of(cls, data: bytes, *, shard: int, number: int, term_id: int, key: int) -> Self:
        return cls(shard=shard, term_id=term_id, number=number, object=data, code=_code(number, data, key))

    def is_authentic(self, key: int) -> bool:
        """Return whether a program that knows ``key`` made it."""
        return compare_digest(self.code, _code(self.number, self.object, key))


def _code(number: int, data: bytes, key: int) -> bytes:
    found = blake2b(number.to_bytes(8), key=key.to_bytes(_KEY_BYTES), digest_size=_CODE_BYTES)
    found.update(data)
    return found.digest()


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a client is connected. The broker publishes ``online`` False as the client's last will.

    ``incarnation`` rises with each start of the program. It shows that two running programs use one
    client id. None: the client does not take part in that check.
    """

    client_id: str
    online: bool
    incarnation: int | None = None


_PRESENCE: msgspec.msgpack.Decoder[Presence] = msgspec.msgpack.Decoder(Presence)


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes) -> Message:
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def decode_request(data: bytes) -> Request:
    """Return the request in ``data``; raises msgspec.DecodeError, also for values beyond a limit."""
    return decode(_REQUEST, data)


def decode_reply(data: bytes) -> AnyReply:
    return decode(_REPLY, data)


def read_presence(mqtt_topic: str, data: bytes) -> Presence:
    """Return the presence in ``data``, published to ``mqtt_topic``. Its ``client_id`` is the sender's address.

    Raises:
        msgspec.DecodeError: the data is invalid, or is about another client than the topic.
    """
    presence = decode(_PRESENCE, data)
    sender = sender_of_presence(mqtt_topic)
    if sender != client_address(user_of(sender), presence.client_id):
        raise msgspec.ValidationError(f"presence of client {presence.client_id!r} from {sender!r}")
    return msgspec.structs.replace(presence, client_id=sender)


def split_message(payload: bytes, *, shard: int, number: int, **term: Any) -> Iterator[MessagePart]:
    """Yield the parts of an encoded message; ``number`` is different for each message of the ``term``."""
    assert len(payload) <= MAX_REPLY_BYTES, f"a message of {len(payload)} bytes"
    starts = range(0, len(payload), PART_BYTES)
    for index, start in enumerate(starts):
        content = payload[start : start + PART_BYTES]
        yield MessagePart(shard=shard, number=number, index=index, count=len(starts), content=content, **term)


class PartCollector:
    """Puts the parts of a reply or push together that was too large for one message.

    Brokers close the connection of a client that sends a packet above their limit. A leader sends the
    parts of one message without another in between, so a receiver keeps one incomplete message per
    leader. If a part is lost, the whole message is: the client repeats its request.
    """

    def __init__(self) -> None:
        self._incomplete: dict[tuple[bytes, int], dict[int, MessagePart]] = {}
        """(ledger, shard) → parts of its newest message, by index. Another ledger may be at an earlier epoch."""

    def add(self, part: MessagePart) -> bytes | None:
        """Return the message that ``part`` completes. A part of an earlier message, or an invalid one, is ignored."""
        if not 0 <= part.index < part.count <= MAX_PARTS or len(part.content) > PART_BYTES:
            return None
        parts = self._incomplete.setdefault((part.ledger_id, part.shard), {})
        known = next(iter(parts.values()), part)
        if (part.leader_epoch, part.number) < (known.leader_epoch, known.number):
            return None
        if (part.leader_epoch, part.number, part.count) != (known.leader_epoch, known.number, known.count):
            parts.clear()
        parts[part.index] = part
        if len(parts) < part.count:
            return None
        del self._incomplete[part.ledger_id, part.shard]
        return b"".join(parts[index].content for index in range(part.count))


def follows(after: str | None, *names: str) -> bool:
    """Return whether the item with ``names`` is behind the cursor ``after``; None is the start of the list."""
    return after is None or names > tuple(after.split("/"))


class Page(Generic[ItemT]):
    """The first items of a list, as many as fit. It is full with the item that does not fit, which it leaves out.

    So neither a reply nor the work for it grows with the shard. An item that is larger than a page is a page of its
    own. A cursor joins the names of an item with slashes, which names do not contain.
    """

    def __init__(self, page_bytes: int = PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._size = 0
        self._last: tuple[str, ...] = ()
        self.items: list[ItemT] = []
        self.is_full = False

    def add(self, names: tuple[str, ...], item: ItemT) -> bool:
        """Return whether the page is full."""
        self._size += len(encode(item))
        if self.items and self._size > self._page_bytes:
            self.is_full = True
        else:
            self.items.append(item)
            self._last = names
        return self.is_full

    @property
    def following(self) -> str | None:
        return "/".join(self._last) if self.is_full else None


def cut_page(
    items: Iterable[tuple[tuple[str, ...], ItemT]], page_bytes: int = PAGE_BYTES
) -> tuple[list[ItemT], str | None]:
    """Return the first items, and the cursor of the next page; None: there is none.

    ``items``: (names, item) in ascending order of the names. A generator builds only the items of
    this page and one more.
    """
    page: Page[ItemT] = Page(page_bytes)
    for names, item in items:
        if page.add(names, item):
            break
    return page.items, page.following


def batch_digest(batch: ProduceBatch, size_bytes: int) -> bytes:
    """Return the digest of ``batch`` with this length, by which a leader recognizes a repeated batch.

    It covers what a batch means: its topic, keys, values, headers, timestamps and source position. It does not cover
    how the request was encoded, nor the fields by which the batch is found (producer id, epoch, sequence).
    docs/ledger.md describes the bytes that are hashed. It need not withstand an attacker: docs/decisions/verdicts.md.
    """
    content = encode((batch.topic, batch.source_position, batch.records, batch.headers))
    if size_bytes == MURMUR_DIGEST_BYTES:
        return mmh3_x64_128_digest(content)[:MURMUR_DIGEST_BYTES]
    return sha256(content).digest()[:SHA_DIGEST_BYTES]
