"""A program that sends what no correct client sends. It checks that the leader refuses it, or that it has no effect.

It knows what every client could find out: the names, incarnations and generations of consumers, and the leader's term. A
request without a reply proves nothing: faults happen meanwhile. What a leader stores of it is found at the end of the run.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import segment_of
from headgate.protocol import codec, requests
from headgate.protocol.codec import client_address, replies_topic, requests_topic
from headgate.protocol.replies import Acknowledged, Committed, ProducerIdentity, Registered, Rejected, Reply
from headgate.protocol.request_fields import FIRST_PROTOCOL_VERSION, MAX_RECORD_BYTES, PROTOCOL_VERSION, Start
from shard.state.producers import WINDOW
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.external_program import SUBSCRIPTION as EXTERNAL_SUBSCRIPTION
from tests.simulation.external_program import TOPIC as EXTERNAL_TOPIC
from tests.simulation.rebirth_program import PHOENIX
from tests.support.fakes.broker import FakeBroker

FORBIDDEN_KEY: Final = b"forbidden"
"""Key of the records that no leader may store."""
GUEST: Final = "guest"
"""A user that may produce, but not to any topic that exists."""
REPLY_SECONDS: Final = 5.0
BEYOND: Final = 1_000_000
"""More records than a run stores."""
FAR: Final = 1000
"""More terms than a run has."""
WRONG_SEEKS: Final[Sequence[dict[str, Any]]] = ({"to": "latest"}, {"positions": [(0, BEYOND)]})
PAUSE_SECONDS: Final = 0.2, 6.0

Attempt = Callable[[], Awaitable[None]]


class RuleBreaker:
    """Sends requests to one shard until it is cancelled."""

    CLIENT_ID = "rule-breaker"

    def __init__(
        self,
        rng: random.Random,
        broker: FakeBroker,
        cluster: str,
        topic: str,
        state: Callable[[], ShardState],
        log: Callable[[str, str, str], None],
    ) -> None:
        """``state``: that of the shard of ``topic``, as its ledger has it."""
        self._rng = rng
        self._cluster = cluster
        self._topic = topic
        self._state = state
        self._log = log
        self._transport = broker.transport(self.CLIENT_ID)
        self._request_ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._epoch, self._ledger_id = 0, b""
        """Of the newest term that has answered."""
        self._counter = itertools.count()
        self._repeated = False
        """Whether a forgotten batch was repeated: once, because it takes many."""
        self.refused = 0
        """Requests that were refused."""
        self._attempts: tuple[Attempt, ...] = (
            self._unknown_producer,
            self._wrong_epochs,
            self._old_batch,
            self._other_terms,
            self._refused_contents,
            self._foreign_acknowledgements,
            self._wrong_registrations,
            self._wrong_positions,
            self._late_registration,
            self._returning_consumer,
            self._external_consumers,
        )

    async def run(self) -> None:
        """Make all attempts, again and again in another order."""
        async with self._transport:
            for user in (ANONYMOUS, GUEST):
                await self._transport.subscribe(
                    replies_topic(self._cluster, client_address(user, self.CLIENT_ID)), self._on_reply
                )
            while True:
                for attempt in self._rng.sample(self._attempts, len(self._attempts)):
                    await asyncio.sleep(self._rng.uniform(*PAUSE_SECONDS))
                    if await self._ask(requests.DescribeLeader(), leader_epoch=None) is not None:
                        await attempt()

    def check(self, keys: Collection[tuple[str, bytes]]) -> None:
        """Check at the end of a run that no forbidden record is stored; ``keys``: (topic, key) of those that are."""
        if found := [topic for topic, key in keys if key == FORBIDDEN_KEY]:
            raise BrokenPromiseError(f"records are stored in {found} that the leader had to refuse")

    # Batches

    async def _unknown_producer(self) -> None:
        for sequence in (0, 3):
            await self._refuse("an unknown producer", self._batch(self._rng.getrandbits(62), 0, sequence))

    async def _wrong_epochs(self) -> None:
        """Write with an older epoch, with a newer one in the middle of its sequences, and with a gap."""
        first, second = await self._open(), await self._open()
        if first is None or second is None:
            return
        producer, epoch = second.producer_id, second.producer_epoch
        await self._refuse("an older producer epoch", self._batch(producer, first.producer_epoch, 0))
        await self._refuse("a new producer epoch at sequence 5", self._batch(producer, epoch + 1, 5))
        await self._refuse("a gap in the sequences", self._batch(producer, epoch, 7))

    async def _old_batch(self) -> None:
        """Repeat a batch that the leader has forgotten: the checker would find its record twice."""
        identity = None if self._repeated else await self._open()
        if identity is None:
            return
        first: requests.ProduceBatch | None = None
        for part in (range(WINDOW // 2), range(WINDOW // 2, WINDOW + 1)):
            batches = [
                self._batch(identity.producer_id, identity.producer_epoch, number, lawful=True) for number in part
            ]
            first = first or batches[0]
            replies = await asyncio.gather(*(self._ask(each) for each in batches))
            if not all(reply is not None and isinstance(reply.body, Committed) for reply in replies):
                return
        assert first is not None
        repeated = await self._ask(first)
        self._repeated = True
        if repeated is not None and isinstance(repeated.body, Committed) and repeated.body.placements is not None:
            raise BrokenPromiseError("a batch older than the window was stored again")
        await self._too_many(await self._open())

    async def _too_many(self, identity: ProducerIdentity | None) -> None:
        """Send more batches at once than may be in flight, and all again: the checker would find a record twice."""
        if identity is None:
            return
        producer = identity.producer_id, identity.producer_epoch
        batches = [self._batch(*producer, number, lawful=True) for number in range(WINDOW + 2)]
        for _ in range(2):
            await asyncio.gather(*(self._ask(each) for each in batches))

    async def _other_terms(self) -> None:
        for epoch in (self._epoch - 1, self._epoch + FAR, None):
            await self._refuse(f"a batch for term {epoch}", self._batch(), leader_epoch=epoch)
        await self._refuse("a batch whose time is over", self._batch(), max_term_age_ms=0)

    async def _refused_contents(self) -> None:
        await self._refuse("a batch of a user without the right", self._batch(), user=GUEST)
        if (guest := await self._open(None, user=GUEST)) is not None:
            batch = self._batch(guest.producer_id, guest.producer_epoch, 0)
            await self._refuse("a batch of a user without the right, in its sequence", batch, user=GUEST)
        await self._refuse("records for an external topic", self._batch(topic=EXTERNAL_TOPIC))
        await self._refuse("a batch of protocol 1", self._batch(), protocol=FIRST_PROTOCOL_VERSION)
        large = requests.Record(FORBIDDEN_KEY, bytes(MAX_RECORD_BYTES), 0)
        await self._refuse("a record that is too large", requests.ProduceBatch(topic=self._topic, records=[large]))

    # Acknowledgements

    async def _foreign_acknowledgements(self) -> None:
        """Acknowledge what others hold, what does not exist, and as an instance that does not."""
        for subscription in self._subscriptions():
            held = sorted(subscription.holdings.items())
            if not held:
                continue
            slice_, holding = self._rng.choice(held)
            known = subscription.consumers.get(holding.consumer)
            if known is None:
                continue
            segment, position = segment_of(slice_), subscription.position(segment_of(slice_))
            valid = requests.Acknowledgement(segment, holding.generation, position, position + 1)
            others = [each for each in subscription.consumers.values() if each != known]
            attempts = {"an older incarnation": (known.consumer, known.incarnation - 1, valid)}
            if others:
                attempts["another consumer"] = (others[0].consumer, others[0].incarnation, valid)
            if subscription.type == e.SubscriptionType.CHECKPOINT:
                attempts["a CHECKPOINT consumer"] = (known.consumer, known.incarnation, valid)
            if self._has_end(subscription, segment):
                beyond = requests.Acknowledgement(segment, holding.generation, position, position + BEYOND)
                attempts["acknowledgements beyond the end"] = (known.consumer, known.incarnation, beyond)
            for what, (consumer, incarnation, acknowledgement) in attempts.items():
                await self._refuse_acknowledgement(subscription, what, consumer, incarnation, acknowledgement)
            if subscription.type == e.SubscriptionType.STREAM:
                # It counts, and acknowledges nothing new. The checker sees from which offset on.
                repeated = requests.Acknowledgement(segment, holding.generation, position, position)
                await self._ask(self._acknowledgement(subscription, known.consumer, known.incarnation, repeated))

    def _has_end(self, subscription: Subscription, segment: int) -> bool:
        """Return whether the leader knows where a segment ends: only its source knows it of an active one with offsets."""
        topic = self._state().topics_by_id[subscription.topic_id]
        sealed = topic.layout.segments[segment].end_offset is not None
        return topic.external is None or sealed or topic.external.positions == "opaque"

    async def _refuse_acknowledgement(
        self,
        subscription: Subscription,
        what: str,
        consumer: str,
        incarnation: int,
        acknowledgement: requests.Acknowledgement,
    ) -> None:
        reply = await self._ask(self._acknowledgement(subscription, consumer, incarnation, acknowledgement))
        if reply is not None and isinstance(reply.body, Acknowledged) and not reply.body.rejected:
            raise BrokenPromiseError(f"{subscription.name}: {what}: {acknowledgement} of {consumer} counts")

    # Consumers

    async def _wrong_registrations(self) -> None:
        """Register with another type or order, for a topic of another kind, and as an instance that was replaced."""
        for subscription in self._subscriptions():
            if subscription.type in (None, e.SubscriptionType.CHECKPOINT) or subscription.topic == PHOENIX:
                continue  # it may be deleted meanwhile
            other = "QUEUE" if subscription.type == "STREAM" else "STREAM"
            name = subscription.topic, subscription.name
            external = subscription.topic == EXTERNAL_TOPIC
            await self._refuse("another type", self._registration(*name, other, external=external))
            if subscription.type == "QUEUE":
                await self._refuse("a QUEUE in order", self._registration(*name, "QUEUE", order="strict"))
            await self._refuse(
                "another kind of topic", self._registration(*name, str(subscription.type), external=not external)
            )
            if subscription.consumers:
                known = self._rng.choice(sorted(subscription.consumers.values(), key=lambda each: each.consumer))
                late = self._registration(*name, str(subscription.type), consumer=known.consumer, external=external)
                # The checker finds it, if it takes the name: the consumer may have left since.
                await self._ask(msgspec.structs.replace(late, incarnation=known.incarnation - 1))

    async def _wrong_positions(self) -> None:
        """Start at positions that do not exist."""
        active = self._state().topics[self._topic].layout.active()[0].segment_id
        for positions in ([(active, BEYOND)], [(BEYOND, 0)]):
            body = self._registration(self._topic, "own-positions", "CHECKPOINT", positions=positions)
            await self._refuse("positions that do not exist", body)

    async def _late_registration(self) -> None:
        """Leave a subscription, and let a copy of the registration arrive after that."""
        body = self._registration(self._topic, "alarms", "QUEUE")
        if await self._joined(body):
            left = await self._ask(self._leaving(body))
            if left is not None and not isinstance(left.body, Rejected):
                await self._refuse("a late copy of a registration", body)

    async def _returning_consumer(self) -> None:
        """Return with another capacity, which counts, and with another balance, which does not; then as a newer program."""
        body = self._registration(self._topic, "alarms", "QUEUE")
        if await self._joined(body):
            changed = self._registration(self._topic, "alarms", "QUEUE", capacity=300, balance="load")
            changed = msgspec.structs.replace(changed, incarnation=body.incarnation)
            if await self._joined(changed):
                subscription = self._state().topics[self._topic].subscriptions["alarms"]
                known = subscription.consumers.get(body.consumer)
                if known is not None and known.incarnation == body.incarnation and known.capacity != changed.capacity:
                    raise BrokenPromiseError(f"a consumer returned with capacity 300, and has {known.capacity}")
                if subscription.balance != "count":
                    raise BrokenPromiseError("a returning consumer changed the balance")
            body = await self._replace(body)
        await self._ask(self._leaving(body))

    async def _replace(self, body: requests.RegisterConsumer) -> requests.RegisterConsumer:
        """Register as a program that was started again, which gets its name at once; return the registration."""
        newer = msgspec.structs.replace(body, incarnation=next(self._request_ids))
        reply = await self._ask(newer)
        if reply is not None and isinstance(reply.body, Rejected) and reply.body.verdict == "fenced":
            raise BrokenPromiseError(f"a consumer that was started again was refused: {reply.body.reason}")
        return newer

    async def _external_consumers(self) -> None:
        """Use an external topic as a stored one: begin at its end, and move beyond what is known of it."""
        if EXTERNAL_TOPIC not in self._state().topics:
            return
        latest = self._registration(EXTERNAL_TOPIC, "from-latest", "STREAM", external=True, start="latest")
        await self._refuse("a start at the latest record of an external topic", latest)
        own = self._registration(
            EXTERNAL_TOPIC, "own", "CHECKPOINT", external=True, start="earliest", positions=[(0, 9)]
        )
        reply = await self._ask(own)
        if reply is not None and isinstance(reply.body, Rejected) and reply.body.verdict == "out_of_range":
            raise BrokenPromiseError(f"positions of an external topic were judged: {reply.body.reason}")
        await self._ask(self._leaving(own))
        for wanted in WRONG_SEEKS:
            seek = requests.SeekSubscription(
                topic=EXTERNAL_TOPIC, subscription=EXTERNAL_SUBSCRIPTION, token=self._token(), dry_run=True, **wanted
            )
            await self._refuse(f"a seek of an external topic to {wanted}", seek)

    # Requests

    def _subscriptions(self) -> Iterator[Subscription]:
        """Yield those that still exist when it is their turn: what one attempt asks for may take as long as an outage."""
        known = [each for topic in self._state().topics.values() for each in topic.subscriptions.values()]
        yield from (each for each in known if each.subscription_id in self._state().subscriptions)

    def _token(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def _batch(
        self,
        producer_id: int | None = None,
        producer_epoch: int = 0,
        sequence: int | None = None,
        *,
        topic: str | None = None,
        lawful: bool = False,
    ) -> requests.ProduceBatch:
        record = (
            requests.Record(b"rules", b"%d" % next(self._counter), 0)
            if lawful
            else requests.Record(FORBIDDEN_KEY, b"0", 0)
        )
        return requests.ProduceBatch(
            topic=topic or self._topic,
            records=[record],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
        )

    @staticmethod
    def _acknowledgement(
        subscription: Subscription, consumer: str, incarnation: int, acknowledgement: requests.Acknowledgement
    ) -> requests.AcknowledgeBatch:
        return requests.AcknowledgeBatch(
            topic=subscription.topic,
            subscription=subscription.name,
            consumer=consumer,
            incarnation=incarnation,
            acknowledgements=[acknowledgement],
        )

    def _registration(
        self,
        topic: str,
        subscription: str,
        kind: str,
        *,
        consumer: str = "rules",
        start: Start = "earliest",
        **fields: Any,
    ) -> requests.RegisterConsumer:
        return requests.RegisterConsumer(
            topic=topic,
            subscription=subscription,
            consumer=consumer,
            incarnation=next(self._request_ids),
            subscription_type=e.SubscriptionType(kind),
            start=start,
            supports_bucket_ranges=True,
            **fields,
        )

    def _leaving(self, body: requests.RegisterConsumer) -> requests.LeaveConsumer:
        return requests.LeaveConsumer(
            topic=body.topic, subscription=body.subscription, consumer=body.consumer, incarnation=body.incarnation
        )

    async def _joined(self, body: requests.RegisterConsumer) -> bool:
        reply = await self._ask(body)
        return reply is not None and isinstance(reply.body, Registered)

    async def _open(self, name: str | None = "rules", user: str = ANONYMOUS) -> ProducerIdentity | None:
        reply = await self._ask(
            requests.OpenProducer(
                token=self._token(), name=name, incarnation=None if name is None else next(self._request_ids)
            ),
            user=user,
        )
        return reply.body if reply is not None and isinstance(reply.body, ProducerIdentity) else None

    async def _refuse(self, what: str, body: requests.AnyRequestBody, **envelope: Any) -> None:
        """Send a request that must be refused."""
        reply = await self._ask(body, **envelope)
        if reply is None:
            return
        if not isinstance(reply.body, Rejected):
            raise BrokenPromiseError(f"{what} was not refused: {reply.body}")
        self._log("rule breaker", what, reply.body.verdict)
        self.refused += reply.body.verdict not in {"not_leader", "unavailable", "quota_exceeded"}

    async def _ask(
        self,
        body: requests.AnyRequestBody,
        *,
        leader_epoch: int | None = -1,
        user: str = ANONYMOUS,
        protocol: int = PROTOCOL_VERSION,
        max_term_age_ms: int | None = None,
    ) -> Reply | None:
        """Send a request once, for the present term by default, and return the reply; None: none came."""
        request_id = next(self._request_ids)
        request = requests.Request(
            request_id=request_id,
            protocol=protocol,
            client_id=self.CLIENT_ID,
            leader_epoch=self._epoch if leader_epoch == -1 else leader_epoch,
            ledger_id=self._ledger_id,
            max_term_age_ms=max_term_age_ms,
            body=body,
        )
        address = client_address(user, self.CLIENT_ID)
        shard = self._state().shard
        reply = self._replies[request_id] = asyncio.get_running_loop().create_future()
        self._transport.publish(requests_topic(self._cluster, shard, address), codec.encode(request))
        try:
            return await asyncio.wait_for(reply, REPLY_SECONDS)
        except TimeoutError:
            return None
        finally:
            del self._replies[request_id]

    def _on_reply(self, _: str, payload: bytes) -> None:
        reply = codec.decode_reply(payload)
        if isinstance(reply, Reply):
            waiting = self._replies.get(reply.request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
                self._epoch, self._ledger_id = max(self._epoch, reply.leader_epoch), reply.ledger_id
