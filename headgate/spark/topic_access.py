"""What the driver knows of a topic: its layout and ends at one moment, and which positions are in it.

The driver asks the cluster once for each batch. Tasks need the ledger only.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.own_subscription import open_own_subscription
from headgate.client.topic_source import TopicSource, open_topic_source
from headgate.errors import ConfigError, RequestRejectedError
from headgate.log.event_log import get_logger
from headgate.model.identifiers import SegmentId
from headgate.model.positions import decode_positions
from headgate.model.time_text import time_ms
from headgate.reading.read_tasks import ReadTask, read_tasks
from headgate.reading.stored_rows import OffsetBounds
from headgate.reading.topic_files import positions_at
from headgate.reading.topic_position import Snapshot
from headgate.settings.config import load_client_config
from headgate.spark.micro_batches import StreamPosition, readable
from headgate.spark.options import TopicOptions
from headgate.sync import EventLoopThread
from headgate.views.topics import TopicInfo

IDLE_SECONDS: Final = 1.0
"""How long a query that has read everything waits for a new chunk, before it asks the leader again all the same."""
REMEDY: Final = "start a query with a new checkpoint"
IF_PRUNED: Final = (
    ", or continue behind pruned records with failOnDataLoss=false; the option subscription keeps what is unread"
)
TOKEN_PREFIX: Final = "positions-"  # noqa: S105 - no password

log = get_logger(__name__)


class TopicAccess:
    """A connection to the cluster, in a thread of its own. It is made on first use; call `close`."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._loop = EventLoopThread()
        self._connections = AsyncExitStack()
        self._source: TopicSource | None = None
        self._admin: Admin | None = None
        self._known_head = 0
        """The newest chunk that was announced before the leader was last asked."""
        self._reported: dict[int, int] | None = None
        """What the subscription was moved to; None: it may not exist."""
        self._has_reported = False

    def close(self) -> None:
        self._loop.run(self._connections.aclose())
        self._loop.close()

    def look(self, idle: Snapshot | None = None) -> Snapshot:
        """Return the topic as it is now; after ``idle``, of which all is read, once a chunk is new or a second passed.

        Raises what `headgate.dataset` raises.
        """
        return self._loop.run(self._look(idle))

    async def _open(self) -> tuple[TopicSource, Admin]:
        if self._source is None or self._admin is None:
            client = Client.from_config(load_client_config(self._options.config), "spark", with_store=True)
            opened = open_topic_source(client, self._options.topic, self._options.timeout_seconds)
            self._source = await self._connections.enter_async_context(opened)
            admin = Admin(client, timeout_seconds=self._options.timeout_seconds)
            self._admin = await self._connections.enter_async_context(admin)
        return self._source, self._admin

    async def _look(self, idle: Snapshot | None) -> Snapshot:
        source, _ = await self._open()
        if idle is not None:
            await source.head.wait_for(max(idle.chunk, self._known_head) + 1, IDLE_SECONDS)
        self._known_head = source.head.number
        return await source.look(idle)

    def offsets_after(self, position: StreamPosition, now: Snapshot, *, skip_pruned: bool = False) -> dict[int, int]:
        """Return segment → offset of the first record after ``position``, for every segment.

        Raises OtherHistoryError or PositionOutOfRangeError: a record after it does not exist any more. With
        ``skip_pruned`` the pruned ones are passed over.
        """
        return self._loop.run(self._offsets_after(position, now, skip_pruned))

    async def _offsets_after(self, position: StreamPosition, now: Snapshot, skip_pruned: bool) -> dict[int, int]:
        source, _ = await self._open()
        return now.ends | await source.starts_after(
            position, now, remedy=REMEDY, if_pruned=IF_PRUNED, skip_pruned=skip_pruned
        )

    def offsets_of(self, text: str, now: Snapshot) -> dict[int, int]:
        """Return the offset of each segment that an option names. Raises ConfigError, or as `offsets_after`."""
        if text == "earliest":
            return dict.fromkeys(now.ends, 0)
        if text == "latest":
            return now.ends
        if text.startswith(TOKEN_PREFIX):
            token = decode_positions(text)
            self.offsets_after(StreamPosition.of_token(token), now)
            return {segment: token.positions.get(SegmentId(segment), 0) for segment in now.ends}
        try:
            at_ms = time_ms(text)
        except ValueError as error:
            raise ConfigError(f"offsets: use earliest, latest, a position token, or a time: {error}") from None
        source, _ = self._loop.run(self._open())
        return self._loop.run(positions_at(source.ledger, now.topic, at_ms))

    def tasks(self, bounds: dict[int, OffsetBounds], now: Snapshot, first_chunk: int = 1) -> list[ReadTask]:
        source, _ = self._loop.run(self._open())
        return self._loop.run(read_tasks(source.ledger, now.topic, bounds, first_chunk))

    def report(self, subscription: str, reached: Mapping[int, int], now: Snapshot) -> None:
        """Move a subscription to ``reached``, and create it if it does not exist.

        Records of segments that wait for their ancestors count as unread.
        """
        self._loop.run(self._report(now.topic, subscription, readable(reached, now.topic.segments)))

    async def _report(self, topic: TopicInfo, subscription: str, positions: dict[int, int]) -> None:
        _, admin = await self._open()
        try:
            if self._reported is None:
                await open_own_subscription(admin, topic.topic, topic.topic_id, subscription)
                self._reported, self._has_reported = {}, True
            if moved := {segment: at for segment, at in positions.items() if self._reported.get(segment) != at}:
                await admin.seek(topic.topic, subscription, positions=moved, topic_id=topic.topic_id)
                self._reported |= moved
        except RequestRejectedError as error:
            if not self._has_reported:
                raise
            # A segment that was read to its end may be pruned before this, or the topic created again. If the
            # subscription was deleted, retention keeps nothing: the next report creates it.
            log.warning("spark.subscription_not_moved", subscription=subscription, reason=str(error))
            self._reported = None
