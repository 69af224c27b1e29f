"""What the driver knows of a topic: its layout and ends at one moment, and which positions are in it.

The driver asks the cluster once for each batch. Tasks need the ledger only.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final, NamedTuple, TypeVar

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.topic_source import TopicSource, open_topic_source
from headgate.errors import ConfigError, OtherHistoryError, PositionOutOfRangeError, RequestRejectedError
from headgate.ledger.ledger import if_exists
from headgate.log.event_log import get_logger
from headgate.model.entries import SubscriptionType
from headgate.model.position_token import decode_positions
from headgate.model.time_text import time_ms
from headgate.reading.read_tasks import ReadTask, read_tasks
from headgate.reading.selected_offsets import OffsetBounds
from headgate.reading.time_lookup import positions_at
from headgate.settings.config import load_client_config
from headgate.spark.batch_planner import is_complete, readable
from headgate.spark.options import TopicOptions
from headgate.spark.stream_position import StreamPosition
from headgate.sync import EventLoopThread
from headgate.views.topics import TopicInfo

IDLE_SECONDS: Final = 1.0
"""How long a query that has read everything waits for a new chunk, before it asks again all the same."""
TOKEN_PREFIX: Final = "positions-"  # noqa: S105 - no password

ResultT = TypeVar("ResultT")

log = get_logger(__name__)


class Snapshot(NamedTuple):
    """A topic at one moment. Its ends are a consistent cut of the ledger."""

    topic: TopicInfo
    ledger_id: str
    newest: tuple[int, int]
    """The newest chunk before that moment, and the id of its term. Records that the ends do not count are not in it."""

    def position(self, positions: dict[int, int], first_chunk: int = 1) -> StreamPosition:
        """Return ``positions``, of every segment, as a position of the moment."""
        segments = self.topic.segments
        is_end = all(positions[each.segment] >= each.next_offset for each in segments)
        return StreamPosition(
            topic=self.topic.topic,
            topic_id=self.topic.topic_id,
            ledger_id=self.ledger_id,
            positions=positions,
            unfinished=[each.segment for each in segments if not is_complete(each, positions)],
            history=[self.newest],
            first_chunk=self.newest[0] + 1 if is_end else first_chunk,
        )

    @property
    def ends(self) -> dict[int, int]:
        return {each.segment: each.next_offset for each in self.topic.segments}


class TopicAccess:
    """A connection to the cluster, in a thread of its own. It is made on first use; call `close`."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._loop = EventLoopThread()
        self._connections = AsyncExitStack()
        self._source: TopicSource | None = None
        self._admin: Admin | None = None
        self._reported: dict[int, int] | None = None
        """What the subscription was moved to; None: it may not exist yet."""

    def close(self) -> None:
        self._loop.run(self._connections.aclose())
        self._loop.close()

    def look(self, after_chunk: int | None = None) -> Snapshot:
        """Return the topic as it is now; with ``after_chunk``, once there is a newer chunk or a second has passed.

        Raises what `headgate.dataset` raises.
        """
        return self._loop.run(self._look(after_chunk))

    async def _open(self) -> tuple[TopicSource, Admin]:
        if self._source is None or self._admin is None:
            client = Client.from_config(load_client_config(self._options.config), "spark", with_store=True)
            opened = open_topic_source(client, self._options.topic, self._options.timeout_seconds)
            self._source = await self._connections.enter_async_context(opened)
            admin = Admin(client, timeout_seconds=self._options.timeout_seconds)
            self._admin = await self._connections.enter_async_context(admin)
        return self._source, self._admin

    async def _look(self, after_chunk: int | None) -> Snapshot:
        source, _ = await self._open()
        if after_chunk is not None:
            await source.head.wait_for(after_chunk + 1, IDLE_SECONDS)
        number = await source.ledger.newest()
        header = await source.ledger.header(number)
        return Snapshot(await source.describe(), source.ledger_id, (number, header.term_id))

    def require_present(self, position: StreamPosition, now: Snapshot, *, fail_on_data_loss: bool = True) -> None:
        """Raise OtherHistoryError or PositionOutOfRangeError unless every record after ``position`` exists."""
        position.require_present(now.topic, now.ledger_id)
        self._loop.run(self._require_history(position, now))
        if pruned := position.unseen_pruned(now.topic.segments):
            assert self._admin is not None, "a snapshot exists"
            lost = position.lost(self._loop.run(self._admin.pruned_ends(position.topic, pruned)), now.topic.segments)
            if lost is not None and fail_on_data_loss:
                raise PositionOutOfRangeError("out_of_range", lost)
            if lost is not None:
                log.warning("spark.data_lost", reason=lost)

    async def _require_history(self, position: StreamPosition, now: Snapshot) -> None:
        """Compare the terms of chunks. One that was trimmed is not compared; one after the newest does not exist."""
        source, _ = await self._open()
        for chunk, term_id in position.history:
            if chunk <= now.newest[0] and term_id == now.newest[1]:
                continue
            header = await if_exists(source.ledger.header, chunk)
            if chunk > now.newest[0] or (header is not None and header.term_id != term_id):
                raise OtherHistoryError(
                    "other_history",
                    f"chunk {chunk} of shard {now.topic.shard} is not the one that this position in topic "
                    f"{position.topic!r} is of: an older ledger was put back; start a query with a new checkpoint",
                )

    def position_of(self, text: str, now: Snapshot) -> StreamPosition:
        """Return the position that an option names. Raises ConfigError, or as `require_present`."""
        if text == "earliest":
            return now.position(dict.fromkeys(now.ends, 0))
        if text == "latest":
            return now.position(now.ends)
        if text.startswith(TOKEN_PREFIX):
            position = StreamPosition.of_token(decode_positions(text))
            self.require_present(position, now)
            return now.position(dict.fromkeys(now.ends, 0) | position.positions)
        try:
            at_ms = time_ms(text)
        except ValueError as error:
            raise ConfigError(f"offsets: use earliest, latest, a position token, or a time: {error}") from None
        source, _ = self._loop.run(self._open())
        return now.position(self._loop.run(positions_at(source.ledger, now.topic, at_ms)))

    def tasks(self, bounds: dict[int, OffsetBounds], now: Snapshot, first_chunk: int = 1) -> list[ReadTask]:
        source, _ = self._loop.run(self._open())
        return self._loop.run(read_tasks(source.ledger, now.topic.topic_id, bounds, first_chunk))

    def report(self, subscription: str, position: StreamPosition, now: Snapshot) -> None:
        """Move a subscription to ``position``, and create it if it does not exist.

        Records of segments that wait for their ancestors count as unread.
        """
        self._loop.run(self._report(subscription, readable(position.positions, now.topic.segments)))

    async def _report(self, subscription: str, positions: dict[int, int]) -> None:
        _, admin = await self._open()
        topic = self._options.topic
        if self._reported is None:
            kind = SubscriptionType.QUEUE
            await admin.create_subscription(topic, subscription, type=kind, start="earliest", if_absent=True)
            self._reported = {}
        if moved := {segment: at for segment, at in positions.items() if self._reported.get(segment) != at}:
            try:
                await admin.seek(topic, subscription, positions=moved)
            except RequestRejectedError as error:
                # A segment that was read to its end may be pruned before this.
                log.warning("spark.subscription_not_moved", subscription=subscription, reason=str(error))
            else:
                self._reported |= moved
