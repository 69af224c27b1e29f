"""The public producer: records in, outcomes out.

1. Records of one topic keep the order in which `Producer.send` accepted them.
2. A batch is sent when it is full, or when it has lingered and no batch is queued before it.
3. ``delivery_timeout_seconds`` is one bound for each record, from `Producer.send` to its outcome,
   including waiting for buffer space and retries. It is never reset, and a record never expires
   early because it shares a batch with an older one. Outcomes are committed, not stored, or unknown.
4. A shard cannot use up the buffer of another one: each has a guaranteed minimum.
5. A record with a source position seals the other topics' batches of its shard, so that positions
   are committed in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Self

from headgate.arguments import require_seconds
from headgate.client.byte_budget import ByteBudget
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.decisions.session_types import Outcome
from headgate.client.record_batch import RECORD_OVERHEAD_BYTES, Delivery, RecordBatch, RecordMetadata
from headgate.client.shard_session import ShardSession
from headgate.config import ClientConfig
from headgate.errors import ConfigError, DeliveryFailedError, HeadgateError, RequestRejectedError
from headgate.event_log import get_logger
from headgate.model.hashing import shard_of
from headgate.protocol import messages as m

__all__ = ["CloseReport", "Delivery", "Producer", "ProducerSettings", "RecordMetadata"]

YIELD_BYTES: Final = 256 * 1024
"""After this many bytes without a pause `send` yields to the event loop, so that batches can be
sent."""
MAX_SOURCE_POSITION_BYTES: Final = 1024
SHORTEST_REQUEST_TIMEOUT_SECONDS: Final = 0.001
"""Shorter than a round trip on loopback: every batch would be sent again before its reply."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer batches, sends and times out. Invalid combinations raise ConfigError."""

    linger_seconds: float = 0.0
    """How long a batch that is not full waits for more records. 0: until the next turn of the event
    loop; while another batch is queued, it grows anyway."""
    batch_bytes: int = 50 * 1024
    """Size at which a batch is full: large enough for little overhead, small enough for short
    delays."""
    max_in_flight: int = 128
    """Most batches of one shard in flight; the leader can announce fewer. This many batches per round
    trip bound the throughput. Half of them are being committed while the other half travel, because
    a leader replies chunk by chunk. All of them are sent again when the leader changes. The default
    is the number that a leader remembers: half as many carry two thirds of the throughput at a
    network delay of 20 ms, and half of it at 100 ms."""
    request_timeout_seconds: float = 5.0
    """After this long without a reply a batch is sent again. Longer than any commit takes."""
    delivery_timeout_seconds: float = 120.0
    """Time from `send` to the outcome. Longer than an election, a restart and a bad network
    together."""
    buffer_bytes: int = 32 * 1024 * 1024
    """Most bytes buffered for all shards, besides the guaranteed minimum of each."""
    guaranteed_bytes: int = 1024 * 1024
    """Bytes that each shard can buffer regardless of the others."""
    when_full: Literal["wait", "fail"] = "wait"
    """Whether `send` waits for buffer space, or raises DeliveryFailedError at once."""
    max_record_bytes: int = m.MAX_RECORD_BYTES
    """Most bytes of key and value together. A leader accepts no more than the default."""

    def __post_init__(self) -> None:
        """Reject invalid combinations, and name both values."""
        require_seconds("linger_seconds", self.linger_seconds, at_least=0.0)
        require_seconds(
            "request_timeout_seconds", self.request_timeout_seconds, at_least=SHORTEST_REQUEST_TIMEOUT_SECONDS
        )
        require_seconds("delivery_timeout_seconds", self.delivery_timeout_seconds)
        least = self.linger_seconds + self.request_timeout_seconds
        if self.delivery_timeout_seconds < least:
            raise ConfigError(
                f"delivery_timeout_seconds={self.delivery_timeout_seconds:g} is below linger_seconds="
                f"{self.linger_seconds:g} + request_timeout_seconds={self.request_timeout_seconds:g}: a batch would "
                f"expire before its first attempt can fail; use at least {least:g}",
            )
        for name in ("batch_bytes", "max_in_flight", "guaranteed_bytes", "max_record_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be above 0")
        if self.guaranteed_bytes > self.buffer_bytes:
            raise ConfigError(
                f"guaranteed_bytes={self.guaranteed_bytes} is above buffer_bytes={self.buffer_bytes}: the "
                "minimum of one shard must fit",
            )
        if self.max_record_bytes > m.MAX_RECORD_BYTES:
            raise ConfigError(
                f"max_record_bytes={self.max_record_bytes} exceeds the leader's limit of {m.MAX_RECORD_BYTES}",
            )
        if self.batch_bytes > m.MAX_MESSAGE_BYTES // 2:
            raise ConfigError(
                f"batch_bytes={self.batch_bytes} leaves no space for another record in a message of "
                f"{m.MAX_MESSAGE_BYTES} bytes; use at most {m.MAX_MESSAGE_BYTES // 2}",
            )
        if self.when_full not in ("wait", "fail"):
            raise ConfigError(f"when_full={self.when_full!r}: use 'wait' or 'fail'")


@dataclass(frozen=True, slots=True)
class CloseReport:
    """The outcomes of all records of a producer, each counted once."""

    committed: int = 0
    failed: int = 0
    """Certainly not stored."""
    unknown: int = 0
    rejected: int = 0
    """Rejected by the leader for good: invalid, fenced or forgotten."""


class Producer:
    """Sends keyed records.

    Use it as an async context manager; leaving it flushes, within the delivery timeout.
    """

    def __init__(
        self,
        config: ClientConfig | Client,
        name: str | None = None,
        settings: ProducerSettings | None = None,
        *,
        connect_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Describe the producer. Nothing happens before the context manager is entered.

        Args:
            config: the cluster, or a client that is connected to it.
            name: makes the producer resumable: its `source_position` survives a restart, and of two
                producers with one name the older is fenced.
            settings: None: the defaults.
            connect_timeout_seconds: how long entering may take.

        Raises:
            InvalidNameError, ConfigError: ``name`` or the configuration is invalid.

        """
        self._client = config if isinstance(config, Client) else Client.from_config(config, "producer")
        self._owns_client = not self._client.entered
        self._name = None if name is None else m.require_name("producer", name)
        self._settings = settings or ProducerSettings()
        self._connect_timeout_seconds = require_seconds("connect_timeout_seconds", connect_timeout_seconds)
        self._budget = ByteBudget(self._settings.buffer_bytes, self._settings.guaranteed_bytes)
        self._shards = 0
        self._shard_batches: dict[int, _ShardBatches] = {}
        self._batches_of_topic: dict[str, _ShardBatches] = {}
        self._opening = asyncio.Lock()
        self._counts: Counter[Outcome] = Counter()
        self._pending: set[RecordBatch] = set()
        self._bytes_since_yield = 0
        self._closed = False
        self._last_opened: _ShardBatches | None = None

    async def __aenter__(self) -> Self:
        """Connect; raises NoLeaderError if the cluster cannot be reached."""
        if self._owns_client:
            await self._client.__aenter__()
        try:
            self._shards = await self._client.shards(self._connect_timeout_seconds)
        except BaseException:
            if self._owns_client:
                await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, exc_type: object, *_: object) -> None:
        """Close: flush first, or discard what is pending if the block raised an exception."""
        await self.close(timeout_seconds=None if exc_type is None else 0)

    # Sending

    async def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        *,
        timestamp_ms: int | None = None,
        source_position: bytes | None = None,
    ) -> Delivery:
        """Buffer one record; returns once there is space for it, with its delivery to await.

        Args:
            topic: the leader rejects the record if the topic does not exist.
            key: records with the same key stay in order.
            value: the content.
            timestamp_ms: milliseconds since 1970; None: now.
            source_position: for a named producer, how far it has read its source, at most 1 KiB.

        Raises:
            RequestRejectedError: the record is too large, or its timestamp or source position is
                invalid.
            DeliveryFailedError: no buffer space within the delivery timeout, or at once with
                ``when_full="fail"``.
            HeadgateError: the producer is closed.

        """
        started_at = asyncio.get_running_loop().time()
        batches = self._batches_of_topic.get(topic) or await self._open_shard(topic)
        size_bytes = self._checked_size(topic, key, value, timestamp_ms, source_position)
        if batches.starts_new_batch(topic, size_bytes):
            # One turn of the loop reads one reply, so a caller that sends without a pause gets one
            # turn per batch. Otherwise most of the window stays unused until the buffer is full.
            # This precedes the reservation: a caller that is cancelled here has reserved nothing.
            await asyncio.sleep(0)
        if not self._budget.try_reserve(batches.shard, size_bytes):
            await self._wait_for_buffer_space(batches.shard, size_bytes, started_at)
        if self._closed:
            self._budget.release(batches.shard, size_bytes)
            raise HeadgateError("this producer is closed")
        at_ms = self._client.now_ms() if timestamp_ms is None else timestamp_ms
        delivery = batches.add(topic, m.Record(key, value, at_ms), size_bytes, source_position, started_at)
        self._bytes_since_yield += size_bytes
        if self._bytes_since_yield >= YIELD_BYTES:
            self._bytes_since_yield = 0
            await asyncio.sleep(0)
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        *,
        timestamp_ms: int | None = None,
        source_position: bytes | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is durable. See `send` for the arguments.

        Every call costs a round trip to the leader and a batch of one record. For throughput, call
        `send` and await the deliveries later.

        Raises:
            everything that `send` raises, and everything that awaiting a `Delivery` raises.

        """
        delivery = await self.send(topic, key, value, timestamp_ms=timestamp_ms, source_position=source_position)
        return await delivery

    async def open(self, topic: str) -> None:
        """Get the identity on the shard of ``topic``, and with it the `source_position`.

        Raises:
            NoLeaderError: no leader granted one within the delivery timeout.
            FencedError: a newer producer of the same name is running.
            ForgottenError: the named producer was deleted after this one had opened it.
            RequestRejectedError: the leader refused it for good, for example because the shard has
                ``max_named_producers`` names.

        """
        batches = await self._open_shard(topic)
        await batches.session.open(self._settings.delivery_timeout_seconds)
        self._last_opened = batches

    @property
    def source_position(self) -> bytes | None:
        """The last source position committed under this name when `open` returned."""
        return None if self._last_opened is None else self._last_opened.session.source_position

    @property
    def created(self) -> bool:
        """Whether the last `open` created the producer. False: it continued a name, or nothing was opened yet."""
        return self._last_opened is not None and self._last_opened.session.created

    async def flush(self) -> None:
        """Wait until every record sent so far has an outcome. Bounded by the delivery timeout."""
        for batches in self._shard_batches.values():
            batches.seal_all()
        pending = [batch.completion for batch in self._pending]
        if pending:
            await asyncio.wait(pending)

    async def close(self, timeout_seconds: float | None = None) -> CloseReport:
        """Flush for at most ``timeout_seconds`` (None: the delivery timeout), and close.

        Raises ConfigError, before anything else: the time-out is negative, or no number.
        """
        if timeout_seconds is not None:
            require_seconds("close: timeout_seconds", timeout_seconds, at_least=0.0)
        if not self._closed:
            self._closed = True
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self.flush()
            except TimeoutError:
                log.warning("producer.close_timed_out", batches=len(self._pending), name=self._name)
            finally:
                for batches in self._shard_batches.values():
                    batches.close()
                if self._owns_client:
                    await self._client.__aexit__(None, None, None)
        return self.report()

    def report(self) -> CloseReport:
        """Return the outcomes so far, in records."""
        counts = self._counts
        return CloseReport(
            committed=counts[Outcome.COMMITTED],
            failed=counts[Outcome.FAILED],
            unknown=counts[Outcome.UNKNOWN],
            rejected=counts[Outcome.INVALID] + counts[Outcome.FENCED] + counts[Outcome.FORGOTTEN],
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are buffered now, for all shards."""
        return self._budget.used_bytes

    @property
    def sent_batches(self) -> int:
        """Number of batches sent, including repetitions."""
        return sum(batches.session.sent_batches for batches in self._shard_batches.values())

    @property
    def resent_batches(self) -> int:
        """Number of batches sent again."""
        return sum(batches.session.session.resent_batches for batches in self._shard_batches.values())

    @property
    def sessions(self) -> dict[int, ShardSession]:
        """The sessions by shard, for tests and benchmarks."""
        return {shard: batches.session for shard, batches in self._shard_batches.items()}

    # Internals

    def _checked_size(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        timestamp_ms: int | None,
        source_position: bytes | None,
    ) -> int:
        """Return the bytes that a record takes of the budget. Reject an invalid one before it spoils its batch."""
        if type(key) is not bytes or type(value) is not bytes:
            raise TypeError(f"key and value must be bytes, not {type(key).__name__} and {type(value).__name__}")
        size = len(key) + len(value)
        if size > self._settings.max_record_bytes:
            raise RequestRejectedError(
                "invalid",
                f"topic {topic!r}: a record of {size} bytes (key and value) is above the limit of "
                f"{self._settings.max_record_bytes}",
            )
        if timestamp_ms is not None and not 0 <= timestamp_ms < 2**63:
            raise RequestRejectedError(
                "invalid", f"topic {topic!r}: timestamp_ms={timestamp_ms} is not between 0 and 2**63"
            )
        if source_position is not None and len(source_position) > MAX_SOURCE_POSITION_BYTES:
            raise RequestRejectedError(
                "invalid",
                f"a source position of {len(source_position)} bytes is above the limit of {MAX_SOURCE_POSITION_BYTES}",
            )
        return size + RECORD_OVERHEAD_BYTES

    async def _open_shard(self, topic: str) -> _ShardBatches:
        if self._closed:
            raise HeadgateError("this producer is closed")
        if not self._shards:
            raise HeadgateError("this producer is not open; use it as an async context manager")
        m.require_name("topic", topic)
        shard = shard_of(topic, self._shards)
        async with self._opening:
            batches = self._shard_batches.get(shard)
            if batches is None:
                batches = _ShardBatches(
                    self._client,
                    shard,
                    name=self._name,
                    settings=self._settings,
                    pending=self._pending,
                    on_outcome=self._on_outcome,
                )
                await batches.session.start()
                self._shard_batches[shard] = batches
        self._batches_of_topic[topic] = batches
        return batches

    async def _wait_for_buffer_space(self, shard: int, size_bytes: int, started_at: float) -> None:
        if self._settings.when_full == "fail":
            raise DeliveryFailedError(
                f"not stored: the buffer is full; {self._budget.used_by(shard)} bytes wait for shard {shard}, "
                f"buffer_bytes={self._settings.buffer_bytes}",
            )
        try:
            async with asyncio.timeout_at(started_at + self._settings.delivery_timeout_seconds):
                await self._budget.reserve(shard, size_bytes)
        except TimeoutError:
            raise DeliveryFailedError(
                f"not stored: no buffer space for shard {shard} within delivery_timeout_seconds="
                f"{self._settings.delivery_timeout_seconds:g}",
            ) from None

    def _on_outcome(self, shard: int, batch: RecordBatch, outcome: Outcome, records: int, released_bytes: int) -> None:
        self._counts[outcome] += records
        if batch.outcome is not None:
            self._pending.discard(batch)
        if released_bytes:
            self._budget.release(shard, released_bytes)


class _ShardBatches:
    """The batches of one shard: the open one of each topic, and the session that sends them."""

    def __init__(
        self,
        client: Client,
        shard: int,
        *,
        name: str | None,
        settings: ProducerSettings,
        pending: set[RecordBatch],
        on_outcome: Callable[[int, RecordBatch, Outcome, int, int], None],
    ) -> None:
        self.shard = shard
        self.session = ShardSession(
            client,
            shard,
            name=name,
            max_in_flight=settings.max_in_flight,
            request_timeout_seconds=settings.request_timeout_seconds,
            on_progress=self._offer_lingered,
        )
        self._settings = settings
        self._pending = pending
        self._on_outcome = on_outcome
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, RecordBatch] = {}
        self._lingered: set[str] = set()
        self._offering = False
        self._filled = False
        self._deadline_timer: asyncio.TimerHandle | None = None

    def starts_new_batch(self, topic: str, size_bytes: int) -> bool:
        """Return, once per batch, whether ``size_bytes`` more start a new one."""
        batch = self._open.get(topic)
        if batch is not None:
            return not batch.fits(size_bytes, self._settings.batch_bytes)
        filled, self._filled = self._filled, False
        return filled

    def add(
        self,
        topic: str,
        record: m.Record,
        size_bytes: int,
        source_position: bytes | None,
        started_at: float,
    ) -> Delivery:
        """Add a record to its topic's open batch.

        ``started_at``: loop time at which `send` was called.
        """
        if source_position is not None:
            for other in [name for name in self._open if name != topic]:
                self._seal(other)
        deadline = started_at + self._settings.delivery_timeout_seconds
        batch = self._open.get(topic)
        if batch is not None and not (
            batch.fits(size_bytes, self._settings.batch_bytes) and batch.accepts_deadline(deadline)
        ):
            self._seal(topic)
            batch = None
        if batch is None:
            batch = self._open_batch(topic)
            self._watch_deadline(deadline)
        delivery = batch.add(record, size_bytes, source_position, deadline)
        if batch.size_bytes >= self._settings.batch_bytes:
            self._filled = True
            self._seal(topic)
        return delivery

    def seal_all(self) -> None:
        """Send all open batches, full or not."""
        for topic in list(self._open):
            self._seal(topic)

    def close(self) -> None:
        """Resolve every batch that has no outcome yet, and stop."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.session.close()

    def _watch_deadline(self, deadline: float) -> None:
        """Wake at ``deadline``, or earlier: one timer for all open batches, because few are open that long."""
        if self._deadline_timer is not None:
            if self._deadline_timer.when() <= deadline:
                return
            self._deadline_timer.cancel()
        self._deadline_timer = self._loop.call_at(deadline, self._seal_expiring)

    def _seal_expiring(self) -> None:
        """Hand open batches with expired records to the session, which reports them; rule 3."""
        self._deadline_timer = None
        now = self._loop.time()
        for topic in [topic for topic, batch in self._open.items() if batch.deadlines[0] <= now]:
            self._seal(topic)
        if self._open:
            self._watch_deadline(min(batch.deadlines[0] for batch in self._open.values()))

    def _open_batch(self, topic: str) -> RecordBatch:
        batch = RecordBatch(topic, partial(self._on_outcome, self.shard))
        self._open[topic] = batch
        self._pending.add(batch)
        if self._settings.linger_seconds:
            self._loop.call_later(self._settings.linger_seconds, partial(self._on_lingered, topic, batch))
        else:
            self._loop.call_soon(self._on_lingered, topic, batch)
        return batch

    def _on_lingered(self, topic: str, batch: RecordBatch) -> None:
        if self._open.get(topic) is batch:
            self._lingered.add(topic)
            self._offer_lingered()

    def _offer_lingered(self) -> None:
        """Rule 2."""
        if self._offering:
            return
        self._offering = True
        while self._lingered and self.session.ready_for_batch:
            self._seal(next(topic for topic in self._open if topic in self._lingered))
        self._offering = False

    def _seal(self, topic: str) -> None:
        batch = self._open.pop(topic)
        self._lingered.discard(topic)
        self.session.offer(batch)
