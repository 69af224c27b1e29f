"""A topic as readers without a subscription see it: its description, ledger, new chunks, and its deletion."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn

from headgate import errors
from headgate.client.admin import Admin
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.ledger.ledger import Ledger
from headgate.log.event_log import get_logger
from headgate.protocol.request_fields import require_name
from headgate.reading.tail import Head
from headgate.reading.topic_position import (
    Snapshot,
    TopicPosition,
    continued,
    require_same_history,
    require_same_topic,
    unread,
)
from headgate.storage.object_store import Store
from headgate.views.topics import TopicInfo

DELETION_CHECK_INTERVAL_SECONDS: Final = 2.0
"""Shortest time between two questions to the leader."""
DELETION_RECHECK_SECONDS: Final = 30.0
"""Longest time between two questions."""

log = get_logger(__name__)


async def _no_ends(_: Iterable[int]) -> Mapping[int, int]:
    return {}


@dataclass(frozen=True, slots=True)
class TopicSource:
    description: TopicInfo
    ledger: Ledger
    ledger_id: str
    newest_chunk: int
    """The newest chunk before the description was asked for. Records that it does not count are not older."""
    describe: Callable[[], Awaitable[TopicInfo]]
    head: Head = field(default_factory=Head)
    pruned_ends: Callable[[Iterable[int]], Awaitable[Mapping[int, int]]] = _no_ends
    """Returns where pruned segments ended, as far as the leader remembers them."""

    async def newest(self) -> tuple[int, int]:
        """Return the newest chunk, and the term that wrote it."""
        number = await self.ledger.newest()
        return number, (await self.ledger.header(number)).term_id

    async def look(self, before: Snapshot | None = None) -> Snapshot:
        """Return the topic as it is now; ``before``, without a request to the store, if nothing was stored since."""
        if before is not None:
            now = await self.describe()
            if (now.topic_id, now.segments) == (before.topic.topic_id, before.topic.segments):
                return before
        counted = await self.ledger.newest()
        return Snapshot(await self.describe(), self.ledger_id, *await self.newest(), counted)

    async def starts_after(
        self, position: TopicPosition, now: Snapshot, *, remedy: str, if_pruned: str = "", skip_pruned: bool = False
    ) -> dict[int, int]:
        """Return segment → offset of the first record after ``position``, without complete segments.

        Raises OtherHistoryError or PositionOutOfRangeError, by the rules of headgate.reading.topic_position. The text
        ends with ``remedy``, and ``if_pruned`` if records are missing. With ``skip_pruned``, pruned ones do not count.
        """
        try:
            require_same_topic(position, now)
            known = not position.chunk or (position.term_id == now.term_id and position.chunk <= now.chunk)
            require_same_history(position, position.term_id if known else await self.ledger.term_id_at(position.chunk))
            remedy += if_pruned
            pruned = unread(now.topic, position.newest, position.offsets).keys() - now.ends.keys()
            ends = await self.pruned_ends(pruned) if pruned else {}
            return continued(now.topic, position.newest, position.offsets, skip_pruned=skip_pruned, pruned_ends=ends)
        except (errors.OtherHistoryError, errors.PositionOutOfRangeError) as error:
            raise type(error)(error.verdict, f"{error}; {remedy}") from None

    async def until_deleted(self, on_change: Callable[[TopicInfo], object] = lambda _: None) -> NoReturn:
        """Wait until the topic is deleted, and raise HeadgateError. ``on_change`` gets each description before.

        Its deletion is a chunk, so the leader is asked after new chunks, and now and then in case the news is lost.
        """
        name, asked_at_chunk = self.description.topic, self.head.number
        while True:
            await self.head.wait_for(asked_at_chunk + 1, DELETION_RECHECK_SECONDS)
            await asyncio.sleep(DELETION_CHECK_INTERVAL_SECONDS)
            asked_at_chunk = self.head.number
            try:
                found = await self.describe()
            except errors.NoLeaderError as error:
                # The reader continues without a leader, so this waits for one as well.
                log.debug("topic.deletion_unknown", reason=str(error))
            except errors.RequestRejectedError as error:
                if error.verdict == "invalid":
                    raise errors.HeadgateError(f"topic {name!r} was deleted, with its records") from None
                raise
            else:
                if found.topic_id != self.description.topic_id:
                    raise errors.HeadgateError(f"topic {name!r} was deleted and created again; run the command again")
                on_change(found)


@asynccontextmanager
async def open_topic_source(
    client: Client, topic: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> AsyncIterator[TopicSource]:
    """Connect ``client``, which has the ledger's store, and describe ``topic``.

    Raises RequestRejectedError, HeadgateError (its records are stored elsewhere), NoLeaderError (the cluster, or the
    leader of the topic's shard, cannot be reached) or StoreUnavailableError.
    """
    require_name("topic", topic)
    async with client, Admin(client, timeout_seconds=timeout_seconds) as admin:
        source = await topic_source(admin, topic, timeout_seconds=timeout_seconds)
        shard, head = source.description.shard, source.head
        remove = await client.watch_head(shard, head.advance)
        try:
            yield source
        finally:
            remove()


async def topic_source(
    admin: Admin, topic: str, *, store: Store | None = None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> TopicSource:
    """Describe ``topic``, without news of its chunks. ``store``: of the ledger. Raises as above."""
    client, store = admin.client, store or admin.store()
    shard = await client.places.shard_of(topic, timeout_seconds)
    ledger, ledger_id = Ledger(store, shard), await client.cluster_watch.ledger_id(store, timeout_seconds)
    newest_chunk = await ledger.newest()
    describe = partial(admin.describe_topic, topic)
    description = await describe()
    if description.shard != shard:
        raise errors.HeadgateError(f"topic {topic!r} was deleted and created again meanwhile; run the command again")
    if description.external is not None:
        source = description.external.source or "its source"
        raise errors.HeadgateError(f"topic {topic!r} is external: its records are at {source}, not in the ledger")
    return TopicSource(
        description, ledger, ledger_id, max(1, newest_chunk), describe, pruned_ends=partial(admin.pruned_ends, topic)
    )
