"""A scripted leader: it follows the verdict table of docs/protocol.md, unless a case says otherwise.

``next`` lists what to do with the next requests of a type, one word each:

``answer``      as the table says; also when the list is at its end
``lose``        ignore it, as if the request were lost
``silent``      execute it without a reply, as if the reply were lost
``twice``       reply twice
``hold``        keep it until ``release``
a verdict       refuse it

All ids have 63 bits. `end` fails a case if the client broke a rule that always holds: a sequence with other content, a
batch without an epoch, more batches in flight than the window.
"""

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_args

import msgspec
from msgspec.structs import replace

from clients.conformance.case_runner import CaseFailedError, Step, as_bytes, difference
from clients.conformance.scripted_ledger import ScriptedLedger, ScriptedProducers
from controller.local.embedded import EmbeddedBroker
from headgate.ledger.identity import claim_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path
from headgate.model.entries import DeliveryPolicy, Placement
from headgate.protocol import codec, replies, requests
from headgate.protocol.codec import ClusterDescription, HeadAnnouncement, LeaderAnnouncement
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.storage.object_store import open_store
from headgate.transport.mqtt import MqttTransport
from trials.compaction import compact

TOPIC_ID, SUBSCRIPTION_ID, PRODUCER_ID = 2**62 + 1, 2**61 + 3, 2**63 - 1000
PART_BYTES = 40


class ScriptedServer:
    """A broker, a leader and a ledger in a folder. Each case has a cluster name and a folder of its own."""

    name: ClassVar = "scripted"

    def __init__(self, folder: Path, *, needs: set[str]) -> None:  # noqa: ARG002 - as of RealServer
        self._folder, self._numbers = folder, itertools.count(1)
        self._broker = EmbeddedBroker(folder / "broker")
        self.leader: Leader

    async def __aenter__(self) -> Self:
        await self._broker.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._broker.__aexit__(*error)

    async def begin(self) -> dict[str, Any]:
        cluster = f"case-{next(self._numbers)}"
        ledger = self._folder / cluster
        ledger.mkdir()
        self.leader = Leader(cluster, ledger, self._broker.port)
        await self.leader.start()
        return {"host": self._broker.host, "port": self._broker.port, "cluster": cluster, "ledger": str(ledger)}

    async def step(self, do: str, step: Step, seconds: float) -> Any:
        return await getattr(self.leader, f"do_{do}")(step, seconds)

    async def end(self) -> None:
        await self.leader.transport.__aexit__(None, None, None)
        if self.leader.producers.broken:
            raise CaseFailedError("; ".join(self.leader.producers.broken))


@dataclass
class Given:
    """What the step ``set`` of a case changes."""

    segments: list[int] = field(default_factory=lambda: [0])
    window: int = 8
    protocol: int = PROTOCOL_VERSION
    shards: int = 1
    ledger_id: str = ""
    term_id: int = 2**63 - 77
    policy: DeliveryPolicy = DeliveryPolicy()  # noqa: RUF009 - frozen
    revoke_timeout_seconds: float = 30.0
    lease_seconds: float = 30.0
    parts: bool = False
    """Whether messages are sent in parts."""
    surplus: bool = False
    """Whether messages have a field of a later version."""
    rejecting: bool = False
    """Whether a reply to acknowledgements rejects each of them."""


class Leader:
    def __init__(self, cluster: str, folder: Path, port: int) -> None:
        self.cluster, self.given = cluster, Given()
        self.folder, self.store = folder, open_store(folder.as_uri())
        self.ledger = ScriptedLedger(TOPIC_ID, self._save)
        self.transport = MqttTransport("127.0.0.1", port, f"{cluster}-leader")
        self.epoch, self.ledger_id = 1, ""
        self.producers = ScriptedProducers(self._store, PRODUCER_ID)
        self.grants: list[replies.Grant] = []
        self.script: dict[str, deque[str]] = defaultdict(deque)
        self.seen: list[dict[str, Any]] = []
        self.held: list[tuple[str, requests.Request]] = []
        self._answered: set[tuple[int, int, int]] = set()
        self._part_numbers = itertools.count(1)
        self._registration: tuple[str, requests.RegisterConsumer] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        self.ledger_id = self.given.ledger_id = await claim_ledger_id(self.store, str(self.folder))
        connected = asyncio.Event()
        self.transport.on_connection(lambda up: connected.set() if up else None)
        await self.transport.subscribe(codec.requests_filter(self.cluster, 0), self._on_request)
        await self.transport.__aenter__()
        await connected.wait()
        self._announce(self.epoch)

    def _announce(self, epoch: int) -> None:
        given, url = self.given, self.folder.as_uri()
        ledger: dict[str, Any] = {"ledger_url": url, "ledger_id": given.ledger_id}
        described = ClusterDescription(protocol=given.protocol, shards=given.shards, **ledger)
        announced = LeaderAnnouncement(shard=0, leader_epoch=epoch, instance="scripted", window=given.window)
        self._publish(codec.cluster_topic(self.cluster), described, retain=True)
        self._publish(codec.leader_topic(self.cluster, 0), announced, retain=True)

    # Messages

    def _publish(self, topic: str, message: msgspec.Struct, *, retain: bool = False) -> None:
        names: dict[str, Any] = {"ledger_id": bytes.fromhex(self.given.ledger_id)}
        payload = codec.encode(message if isinstance(message, ClusterDescription) else replace(message, **names))
        if self.given.surplus:
            payload = msgspec.msgpack.encode(msgspec.msgpack.decode(payload) | {"of-a-later-version": [1]})
        if not self.given.parts or retain or len(payload) <= PART_BYTES or topic.endswith("/head"):
            self.transport.publish(topic, payload, retain=retain)
            return
        pieces = [payload[at : at + PART_BYTES] for at in range(0, len(payload), PART_BYTES)]
        number, count, term = next(self._part_numbers), len(pieces), {"leader_epoch": self.epoch, **names}
        for index in (0, *range(count - 1, -1, -1)):  # in another order, and one of them twice
            part = replies.MessagePart(shard=0, number=number, index=index, count=count, content=pieces[index], **term)
            self.transport.publish(topic, codec.encode(part))

    def reply(
        self, address: str, request: requests.Request, body: replies.AnyReplyBody, epoch: int | None = None
    ) -> None:
        answer = replies.Reply(
            request_id=request.request_id, leader_epoch=self.epoch if epoch is None else epoch, body=body
        )
        self._publish(codec.replies_topic(self.cluster, address), answer)

    def _on_request(self, topic: str, payload: bytes) -> None:
        address, request = codec.sender_of_request(topic), codec.decode_request(payload)
        kind = str(type(request.body).__struct_config__.tag)
        body = {name: getattr(request.body, name) for name in request.body.__struct_fields__}
        fields = msgspec.msgpack.decode(codec.encode(body))
        self.seen.append({"leader_epoch": request.leader_epoch, **fields, "request": kind})
        self._changed.set()
        if request.ledger_id.hex() != self.given.ledger_id:
            if self.given.ledger_id == self.ledger_id:
                self.producers.broken.append(
                    f"{kind} names the ledger {request.ledger_id.hex()}, not {self.given.ledger_id}"
                )
            return
        words = self.script[kind]
        word = words.popleft() if words else "answer"
        if word == "hold":
            self.held.append((address, request))
        else:
            self._treat(address, request, word)
        if isinstance(request.body, requests.ProduceBatch):
            self._check_batch(request)

    def _treat(self, address: str, request: requests.Request, word: str) -> None:
        if word == "lose":
            return
        verdict = cast("replies.Verdict", word) if word in get_args(replies.Verdict) else None
        stale = request.leader_epoch not in (None, self.epoch)
        if isinstance(request.body, requests.DescribeLeader):
            answer: replies.AnyReplyBody = replies.LeaderReply(instance="scripted", window=self.given.window)
        elif verdict is not None or stale:
            answer = replies.Rejected(verdict=verdict or "not_leader", reason=f"scripted {verdict or 'not_leader'}")
        else:
            answer = self._execute(address, request.body)
        if isinstance(request.body, requests.ProduceBatch) and word != "silent":
            body = request.body
            self._answered.add((body.producer_id or 0, body.producer_epoch, body.sequence or 0))
        for _ in range({"silent": 0, "twice": 2}.get(word, 1)):
            self.reply(address, request, answer)

    def _check_batch(self, request: requests.Request) -> None:
        batch = request.body
        assert isinstance(batch, requests.ProduceBatch)
        if request.leader_epoch is None:
            self.producers.broken.append("a batch states no leader_epoch")
        keys = {(each.get("producer_id"), each["producer_epoch"], each["sequence"]) for each in self.seen_of("produce")}
        in_flight = {key for key in keys if key[:2] == (batch.producer_id, batch.producer_epoch)} - self._answered
        if len(in_flight) > self.given.window:
            self.producers.broken.append(
                f"{len(in_flight)} batches are in flight, and the window is {self.given.window}"
            )

    def _execute(self, address: str, body: requests.AnyRequestBody) -> replies.AnyReplyBody:
        match body:
            case requests.OpenProducer():
                return self.producers.open(body)
            case requests.ProduceBatch():
                return self.producers.produce(body)
            case requests.RegisterConsumer():
                self._registration = (address, body)
                return replies.Registered(
                    topic_id=TOPIC_ID,
                    subscription_id=SUBSCRIPTION_ID,
                    grants=self.grants,
                    head=self.ledger.head,
                    blocked=0,
                    heartbeat_interval_seconds=0.5,
                    term_id=self.given.term_id,
                    policy=self.given.policy,
                    revoke_timeout_seconds=self.given.revoke_timeout_seconds,
                    lease_seconds=self.given.lease_seconds,
                )
            case requests.Heartbeat():
                return replies.HeartbeatReply(
                    head=self.ledger.head, blocked=0, stable=True, term_id=self.given.term_id, policy=self.given.policy
                )
            case requests.AcknowledgeBatch():
                return replies.Acknowledged(
                    [(at, "moved") for at in range(len(body.acknowledgements) * self.given.rejecting)]
                )
            case requests.BeginDeliveries():
                return replies.DeliveriesBegun()
        return replies.Done()

    # The ledger

    def _save(self, path: str, data: bytes) -> None:
        """Store a chunk at once: readers see all of it or nothing."""
        new = self.folder / "chunk.new"
        new.write_bytes(data)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new.rename(target)

    def _store(self, batch: requests.ProduceBatch) -> replies.Committed:
        return replies.Committed(placements=self.write(batch.records, batch.headers_by_record), topic_id=TOPIC_ID)

    def write(self, records: list[requests.Record], headers: Any = None, segment: int | None = None) -> list[Placement]:
        placements = self.ledger.write(
            records,
            headers or {},
            segments=self.given.segments,
            segment=segment,
            epoch=self.epoch,
            term_id=self.given.term_id,
        )
        self.announce_head()
        return placements

    def announce_head(self) -> None:
        message = HeadAnnouncement(shard=0, leader_epoch=self.epoch, head=self.ledger.head)
        self._publish(codec.head_topic(self.cluster, 0), message)

    # Steps of cases

    def seen_of(self, kind: str, where: Step | None = None) -> list[dict[str, Any]]:
        return [each for each in self.seen if each["request"] == kind and difference(where or {}, each) is None]

    async def do_set(self, step: Step, _: float) -> None:
        """Set attributes of `Given`."""
        for name, value in step["to"].items():
            setattr(self.given, name, DeliveryPolicy(**value) if name == "policy" else value)
        self.epoch = 1 if "ledger_id" in step["to"] else self.epoch  # A new cluster counts from the beginning.
        if {"window", "protocol", "shards"} & set(step["to"]):
            self._announce(self.epoch)

    async def do_next(self, step: Step, _: float) -> None:
        """Say what happens to the next requests of a type."""
        self.script[step["request"]].extend(step["are"] * step.get("times", 1))

    async def do_wait(self, step: Step, seconds: float) -> Any:
        """Wait for ``count`` requests like ``where``; answer with the last of them."""
        kind, where, count = step["request"], step.get("where"), step.get("count", 1)
        try:
            async with asyncio.timeout(seconds):
                while len(found := self.seen_of(kind, where)) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            others = [{**each, "records": ...} for each in self.seen_of(kind)]
            raise CaseFailedError(f"no {count} requests {kind} with {where}; seen: {others[-5:]}") from None
        return found[-1]

    async def do_never(self, step: Step, _: float) -> None:
        """Fail if ``more_than`` (0) requests like ``where`` were seen, now or after ``for`` seconds."""
        await asyncio.sleep(step.get("for", 0))
        if found := self.seen_of(step["request"], step.get("where"))[step.get("more_than", 0) :]:
            raise CaseFailedError(f"the client sent {found[0]!r:.400}")

    async def do_acknowledged(self, step: Step, seconds: float) -> None:
        """Wait until all below ``end`` is acknowledged at a generation, and nothing else ``for`` seconds later."""
        wanted = set(range(step["end"]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._acknowledged_at(step["generation"]) < wanted:
                    self._changed.clear()
                    await self._changed.wait()
        await asyncio.sleep(step.get("for", 0))
        if (found := self._acknowledged_at(step["generation"])) != wanted:
            raise CaseFailedError(f"acknowledged at generation {step['generation']} are {found}, and not {wanted}")

    def _acknowledged_at(self, generation: int) -> set[int]:
        batches = [each["acknowledgements"] for each in self.seen_of("acknowledge")]
        is_queue = self._registration is not None and self._registration[1].subscription_type == "QUEUE"
        ranges = [(first * is_queue, end) for batch in batches for _, own, first, end, *_ in batch if own == generation]
        return {offset for first, end in ranges for offset in range(first, end)}

    async def do_order(self, step: Step, _: float) -> None:
        """Fail unless the first request like ``before`` came before the first one like ``then``."""
        places = [
            next((n for n, each in enumerate(self.seen) if difference(step[part], each) is None), None)
            for part in ("before", "then")
        ]
        if places[0] is None or places[1] is None or places[0] > places[1]:
            raise CaseFailedError(f"{step['before']} is request {places[0]}, and {step['then']} {places[1]}")

    async def do_release(self, step: Step, _: float) -> None:
        """Treat the requests that are held, the oldest first."""
        for word in step["are"]:
            self._treat(*self.held.pop(0), word)

    async def do_reply(self, step: Step, _: float) -> None:
        """Reply to the newest held request as a leader of another epoch, and keep it."""
        address, request = self.held[-1]
        body = replies.Rejected(verdict=step["verdict"], reason="scripted")
        self.reply(address, request, body, epoch=self.epoch + step["epochs"])

    async def do_stored(self, _: Step, __: float) -> list[str]:
        """Answer with the values that are stored, in order."""
        return [value.decode(errors="replace") for value in self.ledger.stored]

    async def do_new_term(self, step: Step, _: float) -> None:
        """Begin the next term; ``forged``: only announce one, as any client could."""
        if not step.get("forged"):
            self.epoch += 1
        self._announce(self.epoch + 5 * bool(step.get("forged")))

    async def do_other_cluster(self, step: Step, _: float) -> None:
        """Refuse what is held, and fence the consumer, as another cluster of this name."""
        own, self.given.ledger_id = self.given.ledger_id, "0123456789abcdef" * 2
        self._announce(self.epoch)
        for address, request in self.held:
            self.reply(address, request, replies.Rejected(verdict="fenced", reason="scripted"))
        if self._registration is not None:
            await self.do_fence(step, 0)
        self.given.ledger_id = own
        self._announce(self.epoch)

    async def do_forget_producers(self, _: Step, __: float) -> None:
        self.producers.known.clear()

    async def do_grant(self, step: Step, _: float) -> None:
        """Grant segments: with the next registration, or by a push if ``push``."""
        whole = {"first_hash": 0, "last_hash": 0xFFFF, "start_offset": 0, "start_chunk": 1}
        grants = [replies.Grant(**whole | grant | _parked(grant)) for grant in step["grants"]]
        if step.get("push"):
            self._push(replies.AssignmentChanged, step, granted=grants)
        else:
            self.grants = grants

    async def do_revoke(self, step: Step, _: float) -> None:
        self._push(
            replies.AssignmentChanged, step, revoked=[replies.Revocation(**each) for each in step["revocations"]]
        )

    async def do_fence(self, step: Step, _: float) -> None:
        self._push(replies.ConsumerFenced, step, reason="scripted")

    def _push(self, kind: type[replies.Push], step: Step, **fields: Any) -> None:
        assert self._registration is not None
        address, body = self._registration
        incarnation = body.incarnation + step.get("incarnations", 0)
        epoch = self.epoch + step.get("epochs", 0)
        names: dict[str, Any] = {"topic": body.topic, "subscription": body.subscription, "consumer": body.consumer}
        push = kind(**names, incarnation=incarnation, leader_epoch=epoch, **fields)
        self._publish(codec.replies_topic(self.cluster, address), push)

    async def do_store(self, step: Step, _: float) -> None:
        """Store records in a segment, as another producer would; ``skip`` leaves out offsets."""
        segment = step.get("segment", 0)
        self.ledger.next_offset[segment] = step.get("offset", self.ledger.next_offset[segment])
        records = [
            requests.Record(as_bytes(each.get("key", "k")), as_bytes(each["value"]), 1) for each in step["records"]
        ]
        self.write(records, segment=segment)

    async def do_damage(self, _: Step, __: float) -> None:
        """Flip a bit of the newest chunk's middle."""
        path = self.folder / chunk_path(0, self.ledger.head)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    async def do_trim(self, step: Step, _: float) -> None:
        """Compact chunks, and delete them."""
        await compact(Ledger(self.store, 0), step["first"], step["last"])
        for number in range(step["first"], step["last"] + 1):
            await self.store.delete(chunk_path(0, number))


def _parked(grant: dict[str, Any]) -> dict[str, list[bytes]]:
    return {"parked": [as_bytes(key) for key in grant.get("parked", ())]}
