"""The open dead letters of one subscription: find them, send them back, or close them.

Rules:

1. A dead-letter topic is a topic: nothing is taken out of it. What is open is behind the positions of a subscription
   of that topic, which the first replay or drop creates. Retention waits for that subscription, too.
2. A replay stores its position with each record, as a copy does, and moves that subscription at its end. So each dead
   letter is sent back once, whatever interrupts or repeats it.
3. Only dead letters of this very subscription count, by its id: not those of an earlier one of the same name.
4. A parked record of a stream is open until it has been processed or its key was dropped. It is not sent back, which
   would break the order: its key is resumed. Only while no key is parked, the position of rule 1 is moved.
5. Who has seen the letters up to `OpenLetters.through` acts on no later ones, and not on those of another topic, of
   another ledger, or of an older ledger that was put back: it is a position as a copy stores it. Nor are they sent to
   a topic that was created again.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from headgate.client.admin import Admin
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.topic_source import TopicSource, topic_source
from headgate.errors import HeadgateError, OtherHistoryError, PositionOutOfRangeError
from headgate.model.headers import Origin, origin_of
from headgate.model.identifiers import keeper_of
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.topic_position import CopyProgress, Snapshot, beginning, decode_copy, encode_copy
from headgate.reading.topic_reader import TopicReader
from headgate.storage.object_store import Store
from headgate.views.subscriptions import SubscriptionInfo
from headgate.views.topics import TopicInfo

LIST_AGAIN: Final = "list them again"


@dataclass(frozen=True, slots=True)
class OpenLetters:
    source: TopicInfo
    described: SubscriptionInfo
    opened: TopicSource
    """The dead-letter topic."""
    closing: str
    """The subscription of rule 1."""
    starts: Mapping[int, int]
    """Segment of the dead-letter topic → first offset that is open."""
    ends: Mapping[int, int]
    """Segment → offset before which this ends."""
    through: str
    """The same, for `find_open`."""
    parked: Mapping[bytes, int]
    """Parked key of a STREAM → number of its last record that is not open any more (rule 4)."""
    point: tuple[int, int] | None = None
    """A chunk of the ledger of ``ends``, and its term."""

    @property
    def has_stored(self) -> bool:
        """Whether the dead-letter topic has records behind the position of rule 1, open or not."""
        return any(end > self.starts[segment] for segment, end in self.ends.items())

    def reader(self, starts: Mapping[int, int] | None = None) -> TopicReader:
        store, starts = self.opened.description, self.starts if starts is None else starts
        return TopicReader(self.opened.ledger, store, starts=starts, ends=self.ends, describe=self.opened.describe)

    async def letters(self) -> AsyncGenerator[tuple[LedgerRecord, Origin]]:
        """Yield them in the order in which they were stored. Raises like `TopicReader.stored`."""
        async with aclosing(self.reader().stored()) as records:
            async for record in records:
                if (origin := self.origin(record)) is not None and self._is_open(record, origin):
                    yield record, origin

    def _is_open(self, record: LedgerRecord, origin: Origin) -> bool:
        finished = self.parked.get(record.key)
        return self.described.type != "STREAM" or (finished is not None and origin.parked_number > finished)

    def origin(self, record: LedgerRecord) -> Origin | None:
        """Return the origin of a record that is a dead letter of this subscription; None: it is not (rule 3)."""
        own = self.opened.ledger_id, self.source.topic, self.source.topic_id, self.described.subscription_id
        origin = origin_of(record.headers)
        return origin if origin is not None and origin.is_of(*own) else None

    def require_order_kept(self, *, replay: bool) -> None:
        """Raise HeadgateError if rule 4 forbids to replay them, or to drop them."""
        if self.described.type == "STREAM" and (replay or self.parked):
            of, name = self.source.topic, self.described.subscription
            if not self.parked:
                close = f"headgate subscription dead-letters {of} {name} --drop"
                raise HeadgateError(f"no key is parked; records of keys that were resumed or given up: {close}")
            resume = f"headgate subscription resume {of} {name} KEY"
            raise HeadgateError(f"the records of parked keys are resumed in order: {resume}")

    async def send_back(self, admin: Admin) -> int:
        """Send those back that no earlier replay has sent; return how many. Raises what `Producer.send` raises."""
        store, target = self.opened.description, self.source
        name = f"replay-{store.shard}-{store.topic_id}-{target.shard}-{self.described.subscription_id}"
        sent = []
        async with Producer(admin.client, name, ProducerSettings(reserved_headers=True)) as producer:
            await producer.open(target.topic)  # From here on it sends to no later topic of this name.
            if (await admin.describe_topic(target.topic)).topic_id != target.topic_id:
                raise HeadgateError(f"topic {target.topic!r} was deleted and created again: {LIST_AGAIN}")
            progress = await self._progress(producer.source_position)
            send = partial(producer.send, target.topic)
            async with aclosing(self.reader(progress.starts).stored()) as records:
                async for record in records:
                    at = progress.after(record.segment, record.offset)
                    if self.origin(record) is not None:
                        _, _, at_ms, key, value, headers = record
                        sent.append(await send(key, value, headers=headers, timestamp_ms=at_ms, source_position=at))
            for each in sent:
                await each  # If one is not stored, none after it is.
        return len(sent)

    async def _progress(self, stored: bytes | None) -> CopyProgress:
        now = Snapshot(self.opened.description, self.opened.ledger_id, *await self.opened.newest())
        position = beginning(now.topic, now.ledger_id) if stored is None else decode_copy(stored)
        assert position is not None, "only replays use this name"
        position = replace(position, ledger_id=now.ledger_id)  # A copy has another id. Its history is compared, too.
        starts = await self.opened.starts_after(position, now, remedy="drop the dead letters", skip_pruned=True)
        return CopyProgress(now, {each: max(offset, self.starts.get(each, 0)) for each, offset in starts.items()})


async def act(admin: Admin, topic: str, name: str, through: str, *, replay: bool) -> int | None:
    """Close the dead letters up to ``through``. With ``replay``, send them back before, and return how many.

    Raises HeadgateError: rule 4 forbids it, or one could not be sent.
    """
    found = await find_open(admin, topic, name, through=through)
    found.require_order_kept(replay=replay)
    store, closing = found.opened.description.topic, found.closing
    # A user who may not close them sends nothing.
    topic_id = found.opened.description.topic_id
    await admin.create_subscription(store, closing, type="QUEUE", start="earliest", if_absent=True, topic_id=topic_id)
    sent = await found.send_back(admin) if replay else None
    behind = {each: max(end, found.starts[each]) for each, end in found.ends.items()}
    await admin.seek(store, closing, positions=behind, point=found.point, topic_id=topic_id)
    return sent


async def find_open(
    admin: Admin, topic: str, name: str, *, through: str | None = None, store: Store | None = None
) -> OpenLetters:
    """Return the open dead letters, up to ``through`` of an earlier answer. ``store``: of the ledger.

    Raises HeadgateError: there is no dead-letter topic, or ``through`` is of another one.
    """
    source, described = await admin.describe_topic(topic), await admin.describe_subscription(topic, name)
    if not (dead := described.policy.dead_letter_topic):
        raise HeadgateError(
            f"subscription {name} of {topic} has no dead-letter topic: "
            f"headgate subscription set {topic} {name} --dead-letter TOPIC"
        )
    opened = await topic_source(admin, dead, store=store)
    closing = keeper_of(source.shard, described.subscription_id)
    known = {each.subscription: each.segments for each in await admin.list_subscriptions(dead)}
    passed = {each.segment: each.acknowledged_offset for each in known.get(closing, ())}
    now = Snapshot(opened.description, opened.ledger_id, *await opened.newest())
    ends = now.ends if through is None else now.ends | await _seen(opened, through, now)
    starts = {each: passed.get(each, 0) for each in ends}
    through = through or urlsafe_b64encode(encode_copy(now.position(ends))).decode()
    # Asked after the ends: a key whose records are before them is in the answer, or done.
    parked = await admin.parked_keys(topic, name) if described.type == "STREAM" else []
    finished = {each.key: each.finished for each in parked}
    point = now.chunk, now.term_id
    return OpenLetters(source, described, opened, closing, starts, ends, through, finished, point)


async def _seen(opened: TopicSource, through: str, now: Snapshot) -> dict[int, int]:
    """Return the end of ``through`` in segments with later records. Raises HeadgateError: it is of no list of these."""
    position = None
    with suppress(ValueError):
        position = decode_copy(urlsafe_b64decode(through))
    if position is None:
        raise HeadgateError(f"{through[:100]!r} is of no list of dead letters: {LIST_AGAIN}")
    try:
        return await opened.starts_after(position, now, remedy=LIST_AGAIN, skip_pruned=True)
    except (OtherHistoryError, PositionOutOfRangeError) as error:
        raise HeadgateError(str(error)) from None
