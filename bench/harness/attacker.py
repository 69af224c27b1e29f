"""A client with valid credentials that does everything bad, at a bounded rate. A process of its own.

``python -m bench.harness.attacker CONFIG SECONDS`` obeys the benchmark (trials.ordered_process): it attacks after
``go``, stops after ``rest``, and answers ``acts`` with the number of its acts by kind. ``CONFIG`` is its client
configuration, ``SECONDS`` how long it attacks in total.

It plays all acts in random order, then again. Light ones: messages in the name of others, small invalid messages, new
names, guessed passwords. Heavy ones: the largest valid message of each kind, for a topic of others and for its own;
messages at and above the limits; floods of connections and subscriptions. When the broker disconnects it, it connects
again. Its rate is bounded, because only the broker and quotas can stop more.
"""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from bench.harness import worst_cases as worst
from bench.harness.cluster import HOSTILE, HOSTILE_TOPIC, TOPIC
from bench.harness.raw_client import RawClient
from headgate.protocol import codec, requests
from headgate.protocol.codec import MAX_MESSAGE_BYTES, HeadAnnouncement, LeaderAnnouncement, Presence
from headgate.protocol.request_fields import MAX_RECORD_BYTES, PROTOCOL_VERSION
from headgate.settings.config import ClientConfig, load_client_config
from trials.ordered_process import obey

LIGHT_ACTS_A_SECOND: Final = 20.0
HEAVY_ACTS_A_SECOND: Final = 0.5
"""Unless a short attack needs more for playing each one once. A large request may block the leader for 20 ms, so more
than one per two seconds would always move the 99th percentile of others."""
CONNECTIONS_AT_ONCE: Final = 20
SUBSCRIPTIONS_AT_ONCE: Final = 50
CLIENT_ID: Final = "hostile"
LIES_ABOUT: Final = "shop/producer-1"
"""The address in whose name it speaks."""

Act = Callable[[], Awaitable[None]]


def _shuffled(acts: Mapping[str, Act], rng: random.Random) -> Iterator[tuple[str, Act]]:
    while True:
        yield from rng.sample(list(acts.items()), len(acts))


class Hostile:
    """The attacker: one connection that it opens again when it is lost, and more for floods."""

    def __init__(self, config: ClientConfig, seconds: float, rng: random.Random) -> None:
        """``seconds``: how long it will attack."""
        self._counts: Counter[str] = Counter()
        self._attacking = asyncio.Event()
        self._config = config
        self._cluster = config.cluster
        self._rng = rng
        self._client: RawClient | None = None
        self._leader = LeaderAnnouncement(shard=0, leader_epoch=0, instance="", window=0)
        self._names = 0
        heavy = {**self._large_requests(), **self._large_messages(), **self._floods()}
        self._heavy = _shuffled(heavy, rng)
        self._light = _shuffled({**self._lies(), **self._small_acts()}, rng)
        self._heavy_share = max(HEAVY_ACTS_A_SECOND, len(heavy) / seconds) / LIGHT_ACTS_A_SECOND
        self._heavy_due = 0.0

    async def attack(self) -> None:
        """Act while ordered to, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._attacking.wait()
            await self._act()
            due = max(due + 1 / LIGHT_ACTS_A_SECOND, loop.time())
            await asyncio.sleep(due - loop.time())

    async def go(self) -> None:
        self._attacking.set()

    async def rest(self) -> None:
        """Pause after the present act."""
        self._attacking.clear()

    async def acts(self) -> dict[str, int]:
        return self._counts

    async def _act(self) -> None:
        """Do one light thing, and a heavy one if it is due."""
        await self._play(*next(self._light))
        self._heavy_due += self._heavy_share
        while self._heavy_due >= 1:
            self._heavy_due -= 1
            await self._play(*next(self._heavy))

    async def _play(self, name: str, act: Act) -> None:
        try:
            if self._client is None or self._client.disconnected.is_set():
                self._client = await self._connected()
            await act()
            self._counts[name] += 1
        except (OSError, TimeoutError):
            self._counts["disconnected"] += 1
            self._client = None

    # Connections

    def _raw(self, client_id: str, password: str | None = None) -> RawClient:
        return RawClient.from_config(self._config, client_id, password=password)

    async def _connected(self) -> RawClient:
        client = self._raw(CLIENT_ID)
        await client.connect()
        await client.subscribe(codec.leader_topic(self._cluster, 0), self._on_message)
        await client.subscribe(codec.replies_topic(self._cluster, f"{HOSTILE}/{CLIENT_ID}"), self._on_message)
        return client

    def _on_message(self, topic: str, payload: bytes) -> None:
        if topic == codec.leader_topic(self._cluster, 0):
            self._leader = msgspec.msgpack.decode(payload, type=LeaderAnnouncement)

    def _publish(self, topic: str, payload: bytes) -> None:
        assert self._client is not None, "connected before each act"
        self._client.publish_unconfirmed(topic, payload)

    # Acts

    def _large_requests(self) -> dict[str, Act]:
        """Return the largest valid message of each kind, for both topics."""
        found: dict[str, Act] = {}
        for case in worst.CASES:
            shared = case.kind in (requests.AcknowledgeBatch, requests.BeginDeliveries)
            body = case.body(case.world() if shared else worst.plain())
            own = msgspec.structs.replace(body, topic=HOSTILE_TOPIC) if hasattr(body, "topic") else body
            for topic, each in ((TOPIC, body), (HOSTILE_TOPIC, own)):
                found[f"{case.kind.__name__} {case.name} of {topic}"] = partial(self._request, each)
        return found

    async def _request(self, body: requests.AnyRequestBody, named: str = CLIENT_ID, address: str = "") -> None:
        term: dict[str, Any] = {"leader_epoch": self._leader.leader_epoch, "ledger_id": self._leader.ledger_id}
        request = requests.Request(request_id=1, protocol=PROTOCOL_VERSION, client_id=named, body=body, **term)
        topic = codec.requests_topic(self._cluster, 0, address or f"{HOSTILE}/{CLIENT_ID}")
        self._publish(topic, codec.encode(request))

    def _lies(self) -> dict[str, Act]:
        """Return messages in the name of others."""
        cluster = self._cluster
        leader = LeaderAnnouncement(shard=0, leader_epoch=999, instance="x", window=128)
        gone = Presence(client_id=LIES_ABOUT.partition("/")[2], online=False)
        deletes = requests.DeleteTopic(topic=TOPIC, token="x", force=True)  # noqa: S106 - no secret
        forged = requests.ProduceBatch(
            topic=TOPIC,
            records=[requests.Record(b"k", b"forged", 0)],
            producer_id=self._rng.getrandbits(63),
            sequence=0,
        )
        lies = {
            "leader": (codec.leader_topic(cluster, 0), codec.encode(leader)),
            "head": (codec.head_topic(cluster, 0), codec.encode(HeadAnnouncement(shard=0, leader_epoch=1, head=10**9))),
            "presence": (codec.presence_topic(cluster, LIES_ABOUT), codec.encode(gone)),
            "reply": (codec.replies_topic(cluster, LIES_ABOUT), b""),
            "device record": (f"headgate/{cluster}/publish/{TOPIC}/key", b"forged"),
            "sentinel": (codec.device_sentinel_topic(cluster, 0, 1), b"x"),
        }
        return {
            **{name: partial(self._publish_retained, *message) for name, message in lies.items()},
            "request of another": partial(self._request, deletes, named="admin", address="operator/admin"),
            "request that names another": partial(self._request, deletes, named="admin"),
            "forged batch": partial(self._request, forged),
            "presence of its own": partial(
                self._send,
                codec.presence_topic(cluster, f"{HOSTILE}/{CLIENT_ID}"),
                codec.encode(Presence(client_id=CLIENT_ID, online=True, incarnation=1)),
            ),
        }

    async def _publish_retained(self, topic: str, payload: bytes) -> None:
        assert self._client is not None, "connected before each act"
        await self._client.publish(topic, payload, retain=True)

    async def _send(self, topic: str, payload: bytes) -> None:
        self._publish(topic, payload)

    def _small_acts(self) -> dict[str, Act]:
        own = codec.requests_topic(self._cluster, 0, f"{HOSTILE}/{CLIENT_ID}")
        return {
            "random bytes": partial(self._send, own, self._rng.randbytes(100)),
            "wrong password": self._guess,
            "new names": self._register,
        }

    def _large_messages(self) -> dict[str, Act]:
        own = codec.requests_topic(self._cluster, 0, f"{HOSTILE}/{CLIENT_ID}")
        device = f"headgate/{self._cluster}/publish/{HOSTILE_TOPIC}/key"
        return {
            "nested": partial(self._send, own, b"\x91" * 100_000),
            "random bytes, largest": partial(self._send, own, self._rng.randbytes(MAX_MESSAGE_BYTES)),
            "random bytes, too large": partial(self._send, own, self._rng.randbytes(MAX_MESSAGE_BYTES + 1)),
            "largest device record": partial(self._send, device, bytes(MAX_RECORD_BYTES - 3)),
            "too large device record": partial(self._send, device, bytes(MAX_RECORD_BYTES)),
            "above the broker's limit": partial(self._send, own, bytes(6 * 1024 * 1024)),
        }

    def _floods(self) -> dict[str, Act]:
        return {"reconnects": self._reconnect, "takeovers": self._take_over, "subscriptions": self._subscribe}

    async def _reconnect(self) -> None:
        for number in range(CONNECTIONS_AT_ONCE):
            async with self._raw(f"flood-{number}"):
                pass

    async def _take_over(self) -> None:
        """Connect under the ids of daemons and device sessions, as far as a client can know them."""
        for client_id in (codec.daemon_client_id(self._cluster, "d1"), codec.device_session_id(self._cluster, 0, 1, 1)):
            async with self._raw(client_id):
                pass

    async def _guess(self) -> None:
        client = self._raw("guess", password="wrong")  # noqa: S106 - it is wrong
        with contextlib.suppress(ConnectionError):
            await client.connect()
        await client.close()

    async def _subscribe(self) -> None:
        assert self._client is not None, "connected before each act"
        for number in range(SUBSCRIPTIONS_AT_ONCE):
            await self._client.subscribe(f"headgate/{self._cluster}/+/{number}/#")
        await self._client.subscribe("#")

    async def _register(self) -> None:
        self._names += 1
        who = {"topic": HOSTILE_TOPIC, "subscription": "s", "consumer": f"c{self._names}", "incarnation": 1}
        await self._request(requests.RegisterConsumer(**who, subscription_type=worst.STREAM))  # type: ignore[arg-type]
        await self._request(requests.OpenProducer(token=f"t{self._names}"))
        await self._request(requests.LeaveConsumer(**who))  # type: ignore[arg-type]


async def _main() -> None:
    config, seconds = sys.argv[1:]
    hostile = Hostile(load_client_config(config), float(seconds), random.Random(1))
    async with asyncio.TaskGroup() as tasks:
        attacking = tasks.create_task(hostile.attack())
        await obey({"go": hostile.go, "rest": hostile.rest, "acts": hostile.acts})
        attacking.cancel()


if __name__ == "__main__":
    asyncio.run(_main())
