"""The stored records of a topic as Arrow data, for DuckDB, Polars, pandas, pyarrow, and whatever else reads Arrow.

The leader is asked once, for the segments of the topic and their ends. After that only the ledger is read, object by
object, as far as the reader asks for more.
"""

from collections.abc import Iterable, Iterator, Mapping

from arro3.core import RecordBatch, RecordBatchReader, Schema

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.topic_source import open_topic_source
from headgate.errors import ConfigError, LedgerError
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.reading.read_tasks import first_chunk
from headgate.reading.stored_rows import SCHEMA, OffsetBounds, select_offsets
from headgate.reading.topic_files import positions_at
from headgate.reading.topic_reader import TopicReader
from headgate.settings.arguments import require_time_ms
from headgate.settings.config import ClientConfig, load_client_config
from headgate.storage.object_store import open_store
from headgate.sync import EventLoopThread
from headgate.views.topics import TopicInfo


class Dataset:
    """Records of a topic up to its end at one moment, each once: an Arrow stream that can be read many times.

    Each reader gets the same records: those of a segment by offset, parents before children. An object that compaction
    replaces meanwhile is read in its new place. A reader raises an error if a record is missing, for example because
    its segment was pruned meanwhile, and if the ledger was replaced by another one.
    """

    def __init__(
        self,
        config: ClientConfig,
        topic: TopicInfo,
        ledger_id: str,
        offsets: Mapping[int, OffsetBounds],
        *,
        point: tuple[int, int],
        since_ms: int = 0,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Use `dataset`. ``point``: a chunk behind the records, and its term. ``since_ms``: no record is older."""
        self._config = config
        self._point = point
        self._since_ms = since_ms
        self._timeout_seconds = timeout_seconds
        self.topic = topic
        """The topic as the leader described it."""
        self.ledger_id = ledger_id
        self.offsets = dict(offsets)
        """Segment → the first offset, and the one before which it ends."""

    @property
    def schema(self) -> Schema:
        """The columns: key, value, headers, timestamp, segment and offset."""
        return SCHEMA

    @property
    def num_rows(self) -> int:
        """How many records there are. Counting reads nothing."""
        return sum(end - first for first, end in self.offsets.values())

    def reader(self) -> RecordBatchReader:
        """Return a new reader of all records, which reads an object when its records are asked for."""
        return RecordBatchReader.from_batches(SCHEMA, self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a new reader as other libraries take it (Arrow's PyCapsule interface)."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the schema as other libraries take it."""
        return SCHEMA.__arrow_c_schema__()

    def _batches(self) -> Iterator[RecordBatch]:
        wanted = {segment: bounds for segment, bounds in self.offsets.items() if bounds[0] < bounds[1]}
        store, url = open_store(self._config.ledger_url), self._config.ledger_url
        with EventLoopThread() as loop:
            if (found := loop.run(read_ledger_id(store, url))) != self.ledger_id:
                raise LedgerError(f"{url} is another ledger by now, with id {found}: call headgate.dataset again")
            ledger = Ledger(store, self.topic.shard)
            if loop.run(ledger.term_id_at(self._point[0])) != self._point[1]:
                raise LedgerError(f"an older ledger was put back at {url}: call headgate.dataset again")
            first = loop.run(first_chunk(ledger, self.topic, wanted))
        reader = TopicReader(
            ledger,
            self.topic,
            starts={segment: first for segment, (first, _) in wanted.items()},
            ends={segment: end for segment, (_, end) in wanted.items()},
            stored_at_ms=self._since_ms,
            first_chunk=first,
            describe=self._describe,
        )
        yield from stored_batches(reader)

    async def _describe(self) -> TopicInfo:
        client = Client.from_config(self._config, "reader", with_store=True)
        async with open_topic_source(client, self.topic.topic, self._timeout_seconds) as source:
            return source.description


def stored_batches(reader: TopicReader) -> Iterator[RecordBatch]:
    """Yield the stored records of ``reader`` as batches of `SCHEMA`. Raises like `TopicReader.stored_rows`."""
    with EventLoopThread() as loop:
        found = reader.stored_rows()
        while (rows := loop.run(anext(found, None))) is not None:
            yield rows.arrow()


def dataset(
    topic: str,
    config: ClientConfig | None = None,
    *,
    segments: Iterable[int] | None = None,
    offsets: Mapping[int, tuple[int, int | None]] | None = None,
    since_ms: int | None = None,
    before_ms: int | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> Dataset:
    """Return the records that ``topic`` has now, as Arrow data that is read when it is used.

    Compacted objects without a wanted record are not read, and few chunks before the first one with any. The call needs
    no event loop, and may be made where one runs.

    Args:
        topic: the topic. Its records must be stored in headgate.
        config: the cluster; by default what `load_client_config` returns.
        segments: only the records of these segments.
        offsets: segment → the first offset, and the one before which to stop (None: the present end). Only the records
            of these segments.
        since_ms: only records that were stored at this time or later, in milliseconds since 1970 by the ledger's clock.
        before_ms: only records that were stored before this time.
        timeout_seconds: how long to wait for the broker, and for the leader.

    Raises:
        RequestRejectedError: the topic does not exist; the text has near names.
        PositionOutOfRangeError: a segment or an offset does not exist, or was pruned.
        LedgerError: ``config.ledger_url`` is another ledger than that of the cluster.
        ConfigError: the configuration is unusable, or a time is not in milliseconds.
        NoLeaderError: the cluster, or the leader of the topic's shard, cannot be reached.
        StoreUnavailableError: the store is unreachable.
    """
    for name, at_ms in (("since_ms", since_ms), ("before_ms", before_ms)):
        if at_ms is not None:
            require_time_ms(f"dataset: {name}", at_ms)
    if segments is not None and offsets is not None:
        raise ConfigError("dataset: give segments or offsets, not both")
    chosen = offsets if segments is None else dict.fromkeys(segments, (0, None))
    config = load_client_config() if config is None else config
    with EventLoopThread() as loop:
        return loop.run(_open(topic, config, chosen, since_ms, before_ms, timeout_seconds))


async def _open(
    topic: str,
    config: ClientConfig,
    offsets: Mapping[int, tuple[int, int | None]] | None,
    since_ms: int | None,
    before_ms: int | None,
    timeout_seconds: float,
) -> Dataset:
    """Ask the leader for the topic, and find the offsets of the times."""
    client = Client.from_config(config, "reader", with_store=True)
    async with open_topic_source(client, topic, timeout_seconds) as source:
        described = source.description
        bounds = select_offsets(described, offsets)
        if since_ms is not None:
            found = await positions_at(source.ledger, described, since_ms)
            bounds = {segment: (max(first, found[segment]), end) for segment, (first, end) in bounds.items()}
        if before_ms is not None:
            found = await positions_at(source.ledger, described, before_ms)
            bounds = {segment: (first, min(end, found[segment])) for segment, (first, end) in bounds.items()}
        return Dataset(
            config,
            described,
            source.ledger_id,
            {segment: (first, max(first, end)) for segment, (first, end) in bounds.items()},
            point=await source.newest(),
            since_ms=since_ms or 0,
            timeout_seconds=timeout_seconds,
        )
