"""The public producer: records in, outcomes out.

1. Records of one topic keep the order in which `Producer.send` was called, also by several tasks.
2. A batch is sent when it is full, or when it has lingered and no batch is queued before it. It grows with what is
   unanswered: see `headgate.client.decisions.session_batches`.
3. ``delivery_timeout_seconds`` is one bound for each record, from `Producer.send` to its outcome, including waiting for
   buffer space and retries. It is never reset, and a record never expires early because it shares a batch with an older
   one. One that cannot be answered in time is not sent. Outcomes are committed, not stored, or unknown.
4. A shard cannot use up the buffer of another one: each has a guaranteed minimum.
5. A named producer that a newer program has replaced on one shard, or that was deleted there, ends on all shards.
6. A record with a source position seals the other topics' batches of its shard, so that positions
   are committed in the order in which they were sent.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, repeat
from operator import add
from typing import Final, Self

from headgate.client.admin import explained_topic
from headgate.client.client_metrics import ProducerMetrics, ProducerTotals
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client, ClientLease
from headgate.client.decisions.session_batches import NamedProgram, Outcome
from headgate.client.interceptors import Interceptor, OutgoingRecord, Send, chained
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import (
    RECORD_OVERHEAD_BYTES,
    ByteBudget,
    Deliveries,
    Delivery,
    RecordBatch,
    RecordMetadata,
    wire_bytes,
)
from headgate.client.producing.shard_session import ShardBatches, ShardSession
from headgate.client.request_attempts import body_of
from headgate.errors import ConfigError, DeliveryFailedError, DeliveryUnknownError, HeadgateError, RequestRejectedError
from headgate.log.event_log import get_logger
from headgate.model.headers import GivenHeaders, Headers, checked_headers, counted_bytes, wrong_headers
from headgate.protocol.replies import SourcePosition
from headgate.protocol.request_fields import require_name
from headgate.protocol.requests import DescribePosition, Record
from headgate.settings.arguments import require_seconds, require_type
from headgate.settings.config import ClientConfig

__all__ = ["Deliveries", "Delivery", "Producer", "RecordMetadata"]

PAUSE_BYTES: Final = 256 * 1024
"""After this many bytes without a pause `send` lets the event loop turn, so that batches can be sent."""
MAX_SOURCE_POSITION_BYTES: Final = 1024

log = get_logger(__name__)


class Producer:
    """Sends keyed records. Use it as an async context manager; leaving it flushes, within the delivery timeout."""

    def __init__(
        self,
        config: ClientConfig | Client,
        name: str | None = None,
        settings: ProducerSettings | None = None,
        *,
        connect_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        """Describe the producer. Nothing happens before the context manager is entered.

        Args:
            config: the cluster, or a client that is connected to it.
            name: makes the producer resumable: its `source_position` in each topic survives a restart, and of
                two producers with one name the older is fenced.
            settings: None: the defaults.
            connect_timeout_seconds: how long entering may take.
            interceptors: what is added around each `send`, the outermost first.

        Raises:
            InvalidNameError, ConfigError: ``name`` or the configuration is invalid.
        """
        self._lease = ClientLease(config, "producer", connect_timeout_seconds)
        self._client = self._lease.client
        self._program = None if name is None else NamedProgram(require_name("producer", name), self._client.now_ms())
        self._settings = ProducerSettings() if settings is None else settings
        require_type("settings", self._settings, ProducerSettings)
        self._budget = ByteBudget(self._settings.buffer_bytes, self._settings.guaranteed_bytes)
        self._shard_batches: dict[int, ShardBatches] = {}
        self._batches_of_topic: dict[str, ShardBatches] = {}
        self._opening: defaultdict[str | int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock for each topic, and one for each shard."""
        self._waiting = 0
        """Callers that wait for a lock of a topic, or have one."""
        self._pausing = 0
        """Callers that let the loop do other work before they add a record."""
        self._totals = ProducerTotals()
        self._intercepted: Send | None = None
        if interceptors:
            send: Send = self._send_outgoing
            self._intercepted = chained(send, [each.intercept_send for each in interceptors])
        self._pending: set[RecordBatch] = set()
        self._bytes_since_pause = 0
        self._opened: tuple[bool, bytes | None] = False, None
        """What the last `open` found: whether it created the producer, and the position."""

    @classmethod
    def of_program(cls, client: Client, program: NamedProgram, settings: ProducerSettings) -> Self:
        """Return the named producer of a program whose incarnation or secret the leader has given.

        :meta private:
        """
        producer = cls(client, program.name, settings)
        producer._program = program
        return producer

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NoLeaderError: the cluster cannot be reached in time.
            TransportError: the broker and this program refuse each other: a password, a certificate or a name is wrong.
        """
        if self._shard_batches:
            raise HeadgateError("this producer was opened before; create another one")
        await self._lease.open()
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
        headers: GivenHeaders = (),
        timestamp_ms: int | None = None,
        source_position: bytes | None = None,
    ) -> Delivery:
        """Buffer one record; returns once there is space for it, with its delivery to await.

        Args:
            topic: the leader rejects the record if the topic does not exist.
            key: records with the same key stay in order. At least one byte.
            value: the content.
            headers: (name, value) pairs, whose order is kept, or a mapping of names to values. At most 64, and
                16 KiB of names and values. Names that begin with ``headgate-`` are headgate's own.
            timestamp_ms: milliseconds since 1970; None: now.
            source_position: for a named producer, how far it has read its source, at most 1 KiB. `open` the
                topic first: it returns where to continue.

        Raises:
            RequestRejectedError: the record is too large, or its headers, timestamp or source position are
                invalid.
            TypeError: key, value or a header is of another type.
            DeliveryFailedError: no buffer space within the delivery timeout, or at once with
                ``when_full="fail"``.
            NoLeaderError: not stored, because no leader says on which shard the topic is: the cluster has grown.
            HeadgateError: the producer is closed.
        """
        if self._intercepted is None:
            return await self._send(topic, key, value, headers, timestamp_ms, source_position)
        own_headers = self._checked_headers(topic, headers) if headers else ()
        return await self._intercepted(OutgoingRecord(topic, key, value, own_headers, timestamp_ms, source_position))

    async def _send_outgoing(self, record: OutgoingRecord) -> Delivery:
        return await self._send(
            record.topic, record.key, record.value, record.headers, record.timestamp_ms, record.source_position
        )

    async def _send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: GivenHeaders,
        timestamp_ms: int | None,
        source_position: bytes | None,
    ) -> Delivery:
        started_at = self._lease.require_own_loop()
        topic = topic if type(topic) is str else require_name("topic", topic)
        known = None if self._waiting else self._batches_of_topic.get(topic)
        batches = known or await self._open_shard(topic)
        own_headers = self._checked_headers(topic, headers) if headers else ()
        size_bytes = self._checked_size(topic, key, value, own_headers, timestamp_ms, batches)
        if source_position is not None:
            self._check_position(topic, source_position)
        await self._let_batches_leave(batches, topic, size_bytes)
        await self._reserve(batches, size_bytes, started_at)
        at_ms = self._client.now_ms() if timestamp_ms is None else timestamp_ms
        return batches.add(topic, Record(key, value, at_ms), own_headers, size_bytes, source_position, started_at)

    async def send_many(
        self, topic: str, keys: Sequence[bytes], values: Sequence[bytes], *, timestamps_ms: Sequence[int] | None = None
    ) -> Deliveries:
        """Buffer many records; returns once there was space for all, with their deliveries to await at once.

        It takes a tenth of the processor time of as many calls of `send`. Records have no headers.

        Args:
            topic, keys, values: as of `send`, one of each for a record.
            timestamps_ms: milliseconds since 1970; None: now.

        Raises what `send` raises. If a record is invalid, none is sent; if there is no buffer space in time, the first
        ones are.
        """
        given = [keys, values] if timestamps_ms is None else [keys, values, timestamps_ms]
        if len({len(each) for each in given}) > 1:
            raise ConfigError(f"send_many: lists of different lengths: {', '.join(str(len(each)) for each in given)}")
        started_at = self._lease.require_own_loop()
        topic = topic if type(topic) is str else require_name("topic", topic)
        at_ms = repeat(self._client.now_ms()) if timestamps_ms is None else timestamps_ms
        async with self._turn(topic) as batches:
            ends = list(accumulate(self._checked_sizes(topic, keys, values, timestamps_ms, batches)))
            if self._intercepted is None:
                records = list(map(Record, keys, values, at_ms))
                parts: list[tuple[RecordBatch, int, int]] = []
                first = before_bytes = 0
                while first < len(records):
                    await self._let_batches_leave(batches, topic, ends[first] - before_bytes)
                    end = first + batches.capacity(topic, ends, first)
                    size_bytes = ends[end - 1] - before_bytes
                    await self._reserve(batches, size_bytes, started_at)
                    parts.append(batches.extend(topic, records[first:end], size_bytes, started_at))
                    first, before_bytes = end, ends[end - 1]
                return Deliveries(parts)
        named = zip(keys, values, at_ms, strict=False)
        sent = [await self.send(topic, key, value, timestamp_ms=at) for key, value, at in named]
        return Deliveries([each.part for each in sent])

    async def _let_batches_leave(self, batches: ShardBatches, topic: str, size_bytes: int) -> None:
        """Pause for one turn of the loop before ``size_bytes`` more start a new batch, and after `PAUSE_BYTES`.

        A turn reads one reply, so a caller that sends without a pause gets one turn per batch. Otherwise most of the
        window stays unused until the buffer is full. A call that comes meanwhile pauses, too, and stays behind.

        Nothing is awaited after the reservation, which follows: a call that is cancelled has reserved and sent nothing.
        """
        if batches.starts_new_batch(topic, size_bytes) or self._pausing or self._bytes_since_pause >= PAUSE_BYTES:
            self._bytes_since_pause = 0
            self._pausing += 1
            try:
                await asyncio.sleep(0)
            finally:
                self._pausing -= 1

    async def _reserve(self, batches: ShardBatches, size_bytes: int, started_at: float) -> None:
        """Wait for buffer space. Raises DeliveryFailedError; HeadgateError: the producer is closed."""
        if not self._budget.try_reserve(batches.shard, size_bytes):
            await self._wait_for_buffer_space(batches.shard, size_bytes, started_at)
        if not self._lease.opened:
            self._budget.release(batches.shard, size_bytes)
            raise HeadgateError("this producer is closed")
        self._bytes_since_pause += size_bytes

    async def send_and_wait(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        *,
        headers: GivenHeaders = (),
        timestamp_ms: int | None = None,
        source_position: bytes | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is durable. See `send` for the arguments.

        Every call costs a round trip to the leader and a batch of one record. For throughput, call
        `send` and await the deliveries later.

        Raises what `send` raises, and what awaiting a `Delivery` raises. If the topic does not exist, the error names
        the near ones.
        """
        delivery = await self.send(
            topic, key, value, headers=headers, timestamp_ms=timestamp_ms, source_position=source_position
        )
        try:
            return await delivery
        except RequestRejectedError as error:
            raise await explained_topic(self._client, topic, error) from None

    async def open(self, topic: str) -> None:
        """Get the identity on the shard of ``topic``; with a name, read the `source_position` in this topic.

        Raises:
            NoLeaderError: no leader granted one within the delivery timeout.
            FencedError: a newer producer of the same name is running.
            ForgottenError: the named producer was deleted after this one had opened it.
            RequestRejectedError: the leader refused it for good, for example because the shard has
                ``max_named_producers`` names, or the topic of a named producer does not exist.
            DeliveryUnknownError: an earlier record with a source position in ``topic`` may still be stored.
        """
        batches = await self._open_shard(topic)
        if batches.session.session.is_interrupted(topic):
            await self.flush()  # What has no outcome yet could still move the position.
        timeout_seconds = self._settings.delivery_timeout_seconds
        await batches.session.open(timeout_seconds)
        position = None
        if self._program is not None:
            if not batches.session.session.continue_source(topic):
                raise DeliveryUnknownError(
                    f"topic {topic!r}: an earlier record of its source may still be stored: close this producer, and "
                    f"open another one with the name {self._program.name!r}, which decides it"
                )
            moves = any(each.source == topic for each in self._pending)
            before = batches.positions.get(topic)
            question = DescribePosition(producer=self._program.name, topic=topic)
            try:
                reply = await self._client.request(batches.shard, question, timeout_seconds)
            except RequestRejectedError as error:
                self._forget_place(topic)
                if error.verdict == "invalid" and (await self._open_shard(topic)).shard != batches.shard:
                    await self.open(topic)
                    return
                raise await explained_topic(self._client, topic, error) from None
            known = body_of(reply, SourcePosition, f"the leader of shard {batches.shard}")
            position = known.position
            if not moves and batches.positions.get(topic) is before:
                batches.positions[topic] = known
        self._opened = batches.session.created is True, position

    @property
    def source_position(self) -> bytes | None:
        """The last source position that was committed under this name in the topic, when the last `open` returned."""
        return self._opened[1]

    @property
    def created(self) -> bool:
        """Whether the last `open` created the producer. False: it continued a name, or nothing was opened yet."""
        return self._opened[0]

    async def flush(self) -> None:
        """Wait until every record sent so far has an outcome. Bounded by the delivery timeout."""
        self._client.request_ids.require_own_loop()
        for batches in self._shard_batches.values():
            batches.seal_all()
        pending = [batch.completion for batch in self._pending]
        if pending:
            await asyncio.wait(pending)

    async def close(self, timeout_seconds: float | None = None) -> ProducerMetrics:
        """Flush for at most ``timeout_seconds`` (None: the delivery timeout), close, and return the final metrics.

        Raises ConfigError, before anything else: the time-out is negative, or no number.
        """
        if timeout_seconds is not None:
            require_seconds("close: timeout_seconds", timeout_seconds, at_least=0.0)
        if self._lease.opened:
            self._lease.require_own_loop()
            self._lease.opened = False
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self.flush()
            except TimeoutError:
                log.warning(
                    "producer.close_timed_out",
                    batches=len(self._pending),
                    producer=None if self._program is None else self._program.name,
                )
            finally:
                for batches in self._shard_batches.values():
                    batches.close()
                await self._lease.close()
        return self.metrics()

    def metrics(self) -> ProducerMetrics:
        """Return what this producer has counted. Any thread may call it."""
        totals, records = self._totals, self._totals.records
        sessions = [batches.session for batches in list(self._shard_batches.values())]
        return ProducerMetrics(
            committed_records=records[Outcome.COMMITTED],
            failed_records=records[Outcome.FAILED],
            unknown_records=records[Outcome.UNKNOWN],
            rejected_records=records[Outcome.INVALID] + records[Outcome.FENCED] + records[Outcome.FORGOTTEN],
            committed_bytes=totals.committed_bytes,
            committed_batches=totals.committed_batches,
            commit_seconds=totals.commit_seconds,
            sent_batches=sum(session.sent_batches for session in sessions),
            retried_batches=sum(session.session.resent_batches for session in sessions),
            epoch_bumps=sum(session.session.epoch_bumps for session in sessions),
            buffered_bytes=self._budget.used_bytes,
        )

    @property
    def sessions(self) -> dict[int, ShardSession]:
        """The sessions by shard: what prevents a commit, and what tests and benchmarks look at."""
        return {shard: batches.session for shard, batches in self._shard_batches.items()}

    # Internals

    def _checked_size(
        self, topic: str, key: bytes, value: bytes, headers: Headers, timestamp_ms: int | None, batches: ShardBatches
    ) -> int:
        """Return the bytes that a record takes of the budget. Reject an invalid one before it spoils its batch."""
        if type(key) is not bytes or type(value) is not bytes:
            raise TypeError(f"key and value must be bytes, not {type(key).__name__} and {type(value).__name__}")
        if not key:
            raise RequestRejectedError("invalid", f"topic {topic!r}: the key is empty, and must have at least one byte")
        size = len(key) + len(value) + (counted_bytes(headers) if headers else 0)
        if size > self._settings.max_record_bytes:
            raise RequestRejectedError(
                "invalid",
                f"topic {topic!r}: a record of {size} bytes (key, value and headers) is above the limit of "
                f"{self._settings.max_record_bytes} (max_record_bytes)",
            )
        # Usually a batch is smaller than what the broker accepts, so most records need only the first comparison.
        if size > batches.batch_bytes and size > (limit_bytes := batches.max_record_bytes()):
            raise RequestRejectedError(
                "invalid",
                f"topic {topic!r}: a record of {size} bytes (key, value and headers) is above {limit_bytes}, which the "
                "broker's limit of packets leaves for records; raise that limit (mosquitto: max_packet_size)",
            )
        if timestamp_ms is not None and not (type(timestamp_ms) is int and 0 <= timestamp_ms < 2**63):
            raise RequestRejectedError(
                "invalid", f"topic {topic!r}: timestamp_ms={timestamp_ms} is no integer between 0 and 2**63"
            )
        return wire_bytes(key, value, headers)

    def _checked_sizes(
        self,
        topic: str,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        timestamps_ms: Sequence[int] | None,
        batches: ShardBatches,
    ) -> list[int]:
        """Return what `_checked_size` returns of each record. Usually the extremes show that all are valid."""
        times = timestamps_ms or ()
        timed = not times or ({*map(type, times)} == {int} and 0 <= min(times) <= max(times) < 2**63)
        if timed and {*map(type, keys), *map(type, values)} == {bytes} and all(keys):
            sizes = list(map(add, map(len, keys), map(len, values)))
            if max(sizes) <= min(self._settings.max_record_bytes, batches.batch_bytes):
                return [size + RECORD_OVERHEAD_BYTES for size in sizes]
        named = zip(keys, values, repeat(()), timestamps_ms or repeat(None), repeat(batches), strict=False)
        return [self._checked_size(topic, *each) for each in named]

    def _checked_headers(self, topic: str, given: GivenHeaders) -> Headers:
        try:
            headers = checked_headers(given)
        except ValueError as error:
            raise RequestRejectedError("invalid", f"topic {topic!r}: {error}") from None
        wrong = wrong_headers(headers, reserved=self._settings.reserved_headers)
        if wrong is not None:
            raise RequestRejectedError("invalid", f"topic {topic!r}: the record has {wrong}")
        return headers

    def _check_position(self, topic: str, position: bytes) -> None:
        if type(position) is not bytes:
            raise TypeError(f"source_position must be bytes, not {type(position).__name__}")
        if len(position) > MAX_SOURCE_POSITION_BYTES:
            raise RequestRejectedError(
                "invalid",
                f"a source position of {len(position)} bytes is above the limit of {MAX_SOURCE_POSITION_BYTES}",
            )
        if topic not in self._batches_of_topic[topic].positions:
            raise RequestRejectedError(
                "invalid",
                f"topic {topic!r} was not opened: give the producer a name, and call open(topic) before the first "
                "source position, to learn where to continue",
            )

    async def _open_shard(self, topic: str) -> ShardBatches:
        async with self._turn(topic) as batches:
            return batches

    @asynccontextmanager
    async def _turn(self, topic: str) -> AsyncGenerator[ShardBatches]:
        """Wait for those who have called before for ``topic``: records keep the order in which the callers came."""
        self._lease.require_own_loop()
        require_name("topic", topic)
        self._waiting += 1
        try:
            async with self._opening[topic]:
                yield self._batches_of_topic.get(topic) or await self._find_shard(topic)
        finally:
            self._waiting -= 1

    async def _find_shard(self, topic: str) -> ShardBatches:
        shard = await self._client.places.shard_of(topic, self._settings.delivery_timeout_seconds)
        async with self._opening[shard]:
            batches = self._shard_batches.get(shard)
            if batches is None:
                batches = ShardBatches(
                    self._client,
                    shard,
                    program=self._program,
                    settings=self._settings,
                    pending=self._pending,
                    on_outcome=self._on_outcome,
                    on_end=self._end_all,
                )
                try:
                    await batches.session.start()
                    self._lease.require_own_loop()  # It may have been closed meanwhile.
                except BaseException:
                    batches.close()
                    raise
                self._shard_batches[shard] = batches
                self._end_all()
        self._batches_of_topic[topic] = batches
        return batches

    async def _wait_for_buffer_space(self, shard: int, size_bytes: int, started_at: float) -> None:
        if self._settings.when_full == "fail":
            raise DeliveryFailedError(
                f"not stored: the buffer is full; {self._budget.used_by(shard)} bytes wait for shard {shard}, "
                f"buffer_bytes={self._settings.buffer_bytes}"
            )
        try:
            async with asyncio.timeout_at(started_at + self._settings.delivery_timeout_seconds):
                await self._budget.reserve(shard, size_bytes)
        except TimeoutError:
            raise DeliveryFailedError(
                f"not stored: no buffer space for shard {shard} within delivery_timeout_seconds="
                f"{self._settings.delivery_timeout_seconds:g}"
            ) from None

    def _end_all(self) -> None:
        """Apply rule 5: end every session as the first one did that was fenced or forgotten."""
        ends = (batches.session.end for batches in self._shard_batches.values())
        end = next((end for end in ends if end is not None), None)
        if end is not None and self._program is not None:
            for batches in self._shard_batches.values():
                batches.session.end_as(end)

    def _forget_place(self, topic: str) -> None:
        """Look for ``topic`` again before its next record, if it can be on another shard than the one that refused."""
        if self._client.places.forget(topic):
            self._batches_of_topic.pop(topic, None)

    def _on_outcome(
        self, shard: int, opened_at: float, batch: RecordBatch, outcome: Outcome, records: int, released_bytes: int
    ) -> None:
        totals = self._totals
        totals.records[outcome] += records
        if outcome is Outcome.INVALID:
            self._forget_place(batch.topic)
        if outcome is Outcome.COMMITTED:
            totals.committed_bytes += released_bytes
            totals.committed_batches += 1
            totals.commit_seconds += asyncio.get_running_loop().time() - opened_at
        if batch.outcome is not None:
            self._pending.discard(batch)
        if released_bytes:
            self._budget.release(shard, released_bytes)
