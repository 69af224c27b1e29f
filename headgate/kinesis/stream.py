"""The adapter of Kinesis: boto3's client, in threads.

A shard's pages are asked for, or pushed to a *stream consumer* that is registered for the stream (enhanced fan-out).
Errors that pass raise `KinesisUnavailableError`; listings and the reader try again. All others raise HeadgateError.

`ShardReader` reads one shard from its checkpoint to its end, as fast as Kinesis allows: five requests and 2 MB a
second.

1. A page is delivered completely before the next one is asked for.
2. A request that Kinesis refuses for now is repeated after a growing pause. An iterator that has expired is asked for
   again, at the last page.
3. An empty page is no end: only a page without a next iterator is.
4. Kinesis passes over expired records in silence. So the record of the checkpoint is read again. If another one comes
   in its place, or the end, it has expired, and those behind it may have expired unread.
5. With a stream consumer, one page is asked for whenever none is pushed: it tells whether the shard has ended.
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, Final, NamedTuple

from headgate.backoff import Backoff, BackoffSchedule
from headgate.client.source_listing import ExternalLayout, read_list_shards
from headgate.errors import ConfigError, HeadgateError
from headgate.extras import install_extra
from headgate.kinesis.position import Position, iterator_arguments
from headgate.log.event_log import get_logger

THREADS: Final = 16
"""Requests at the same time. One takes some 20 ms, and a shard is read five times a second at most."""
BACKOFF: Final = Backoff(first_seconds=0.5, longest_seconds=10.0)
LISTING_ATTEMPTS: Final = 7
"""An account may list 20 times a second, and all programs of a team start at once. The pauses take 25 s at most."""
REGISTRATION_SECONDS: Final = 60
"""A stream consumer is active some seconds after its registration."""
_PASSING: Final = (
    "InternalFailure",
    "InternalFailureException",
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestExpired",
    "ResourceInUseException",
    "ServiceUnavailable",
    "ThrottlingException",
)

log = get_logger(__name__)
REQUEST_SECONDS: Final = 0.2
BYTES_PER_SECOND: Final = 2_000_000
IDLE_SECONDS: Final = 1.0
"""Other programs read the shard too, and share its five requests a second."""
LOGGED_FAILURES: Final = 5


class KinesisUnavailableError(HeadgateError):
    """Kinesis cannot answer at present, or asks for fewer requests."""


class IteratorExpiredError(HeadgateError):
    """Iterators last five minutes."""


class ShardGoneError(HeadgateError):
    """The shard has expired, with all its records."""


class Page(NamedTuple):
    records: Sequence[tuple[str, str, bytes, int]]
    """(sequence number, partition key, data, arrival in milliseconds since 1970)."""
    iterator: str | None
    """The iterator of the next page that is asked for; None: the shard was read to its end, or the page was pushed."""
    behind_ms: int


class KinesisStream:
    def __init__(self, client: Any, name: str) -> None:
        """``client``: boto3's; None: a new one, from its configuration and environment."""
        self.name = name
        self.id = ""
        """Known once its shards were listed, if the server says it."""
        self._client = new_client("kinesis") if client is None else client
        self._threads = ThreadPoolExecutor(THREADS, "headgate-kinesis")
        self._asking, self._source, self._asked_at = asyncio.Lock(), "", 0.0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def shards(self) -> ExternalLayout:
        """Return all shards. Raises HeadgateError: the stream was created again since the first call, or meanwhile."""
        await self._same_source()
        shards: list[Any] = []
        page = await self._list(self._client.list_shards, StreamName=self.name)
        shards += page["Shards"]
        while token := page.get("NextToken"):
            page = await self._list(self._client.list_shards, NextToken=token)
            shards += page["Shards"]
        return read_list_shards(json.dumps({"Shards": shards}).encode(), source=await self._same_source())

    async def iterator(self, shard: str, arguments: dict[str, Any]) -> str:
        """Return a new iterator of the stream that was listed. Raises ShardGoneError, or what the module names."""
        request = partial(self._client.get_shard_iterator, StreamName=self.name, ShardId=shard)
        found = await self._ask(request, **arguments)
        await self._same_source()
        return str(found["ShardIterator"])

    async def _same_source(self) -> str:
        """Return what names this very stream: one that is created again by its name is another, and an error.

        A shard without a checkpoint has no position that Kinesis could refuse. Those that wait share one request.
        """
        called_at = monotonic()
        async with self._asking:
            if self._asked_at <= called_at:
                asked_at = monotonic()
                summary = await self._list(self._client.describe_stream_summary, StreamName=self.name)
                found = summary["StreamDescriptionSummary"]
                source = f"{found['StreamARN']} of {found['StreamCreationTimestamp'].timestamp():.3f}"
                if self._source not in ("", source):
                    raise HeadgateError(f"stream {self.name} was deleted and created again: it needs another topic")
                self._source, self._asked_at = source, asked_at
                self.id = found.get("StreamId", "")
        return self._source

    async def page(self, iterator: str, max_records: int) -> Page:
        """Return the records behind an iterator. Raises IteratorExpiredError, or what the module names."""
        return _page(await self._ask(self._client.get_records, ShardIterator=iterator, Limit=max_records))

    async def register(self, name: str) -> str:
        """Return the ARN of the stream consumer ``name``, which is registered if it is missing, once it is active."""
        stream, _, _ = (await self._same_source()).partition(" ")
        for _ in range(REGISTRATION_SECONDS):
            listed = await self._list(self._client.list_stream_consumers, StreamARN=stream)
            found = {each["ConsumerName"]: each for each in listed["Consumers"]}.get(name)
            if found is None:
                with suppress(KinesisUnavailableError):  # Another copy of the program may register it.
                    await self._ask(self._client.register_stream_consumer, StreamARN=stream, ConsumerName=name)
            elif found["ConsumerStatus"] == "ACTIVE":
                return str(found["ConsumerARN"])
            await asyncio.sleep(1)
        raise KinesisUnavailableError(f"stream {self.name}: consumer {name} is not active")

    async def pushed(self, consumer_arn: str, shard: str, arguments: dict[str, Any]) -> AsyncGenerator[Page]:
        """Yield the pages that Kinesis pushes from where an iterator with ``arguments`` would begin.

        That ends after five minutes, and at the shard's end. Raises what the module names, but no ShardGoneError.
        """
        names = {"ShardIteratorType": "Type", "StartingSequenceNumber": "SequenceNumber", "Timestamp": "Timestamp"}
        wanted: dict[str, Any] = {"ConsumerARN": consumer_arn, "ShardId": shard}
        wanted["StartingPosition"] = {names[each]: value for each, value in arguments.items()}
        # In no argument of `_ask`: what is not found may be the stream consumer.
        events = (await self._ask(lambda: self._client.subscribe_to_shard(**wanted)))["EventStream"]
        arriving, thread = iter(events), ThreadPoolExecutor(1, "headgate-kinesis-pushed")
        try:
            while (event := await self._ask(partial(next, arriving, None), thread)) is not None:
                yield _page(event["SubscribeToShardEvent"])
                if event["SubscribeToShardEvent"].get("ChildShards"):
                    return
        finally:
            thread.submit(events.close)  # After a read that waits for an event, as closing does then.
            thread.shutdown(wait=False)

    async def _list(self, request: Callable[..., Any], **arguments: Any) -> Any:
        schedule = BackoffSchedule(BACKOFF, random.random)
        for _ in range(1, LISTING_ATTEMPTS):
            try:
                return await self._ask(request, **arguments)
            except KinesisUnavailableError as error:
                log.warning("kinesis.not_listed", reason=str(error))
                await asyncio.sleep(schedule.next_seconds())
        return await self._ask(request, **arguments)

    async def _ask(self, request: Callable[..., Any], threads: Executor | None = None, /, **arguments: Any) -> Any:
        from botocore.exceptions import (  # noqa: PLC0415 - in the extra
            BotoCoreError,
            ClientError,
            ConnectionError,  # noqa: A004 - botocore's
            HTTPClientError,
        )
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - what botocore reads events with

        try:
            call = partial(request, **arguments)
            return await asyncio.get_running_loop().run_in_executor(threads or self._threads, call)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise KinesisUnavailableError(str(error)) from error
            if code == "ExpiredIteratorException":
                raise IteratorExpiredError(str(error)) from error
            if code == "ResourceNotFoundException" and "ShardId" in arguments | getattr(request, "keywords", {}):
                raise ShardGoneError(str(error)) from error
            raise HeadgateError(f"stream {self.name}: {error}") from error
        except (ConnectionError, HTTPClientError, HTTPError) as error:
            raise KinesisUnavailableError(str(error)) from error
        except BotoCoreError as error:
            raise HeadgateError(f"stream {self.name}: {error}") from error


def _page(found: dict[str, Any]) -> Page:
    records = [
        (
            each["SequenceNumber"],
            each["PartitionKey"],
            each["Data"],
            round(each["ApproximateArrivalTimestamp"].timestamp() * 1000),
        )
        for each in found["Records"]
    ]
    return Page(records, found.get("NextShardIterator"), found.get("MillisBehindLatest", 0))


def new_client(service: str) -> Any:
    """Return a client of boto3. Raises ConfigError: it is missing, or not configured."""
    try:
        import boto3  # noqa: PLC0415 - in the extra
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - in the extra
    except ImportError as error:
        raise ConfigError(f"boto3 is missing: {install_extra('kinesis')} ({error})") from error
    try:
        return boto3.client(service)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"AWS is not configured: {error} See AWS_DEFAULT_REGION, or aws configure") from error


def pause_seconds(page: Page) -> float:
    """Return how long to wait after a page, so that the shard's limits hold. Pure."""
    if not page.records and page.behind_ms == 0:
        return IDLE_SECONDS
    return max(REQUEST_SECONDS, sum(len(data) for _, _, data, _ in page.records) / BYTES_PER_SECOND)


class ShardReader:
    def __init__(
        self, stream: KinesisStream, shard: str, max_records: int, draw: random.Random, consumer_arn: str | None
    ) -> None:
        self._stream = stream
        self._shard = shard
        self._max_records = max_records
        self._consumer_arn = consumer_arn
        self._backoff = BackoffSchedule(BACKOFF, draw.random)

    async def pages(self, position: Position | None, start: Any) -> AsyncGenerator[Page]:
        """Yield pages from ``position`` on; without one, from ``start``. Raises ShardGoneError or HeadgateError."""
        iterator: str | None = None
        failures, at_checkpoint = 0, position is not None
        while True:
            try:
                if iterator is None:
                    iterator = await self._stream.iterator(
                        self._shard, iterator_arguments(position, start, again=at_checkpoint)
                    )
                page = await self._stream.page(iterator, self._max_records)
                failures = 0
                self._backoff.reset()
                if at_checkpoint and position is not None and (page.records or page.iterator is None):
                    page, at_checkpoint = self._behind_checkpoint(page, position), False
                yield page
                if page.records:
                    position = Position(page.records[-1][0])
                if page.iterator is None:
                    return
                iterator = page.iterator
                await asyncio.sleep(pause_seconds(page))
                if self._consumer_arn is not None:
                    iterator = None
                    arguments = iterator_arguments(position, start)
                    async with aclosing(self._stream.pushed(self._consumer_arn, self._shard, arguments)) as pages:
                        async for pushed in pages:
                            yield pushed
                            if pushed.records:
                                position, at_checkpoint = Position(pushed.records[-1][0]), False
            except IteratorExpiredError:
                iterator = None
                await asyncio.sleep(REQUEST_SECONDS)
            except KinesisUnavailableError as error:
                failures += 1
                if failures % LOGGED_FAILURES == 0:
                    log.warning("kinesis.waiting", shard=self._shard, failures=failures, reason=str(error))
                await asyncio.sleep(self._backoff.next_seconds())

    def _behind_checkpoint(self, page: Page, position: Position) -> Page:
        """Return the first page without the record of the checkpoint, unless a part of that is left to handle."""
        if not page.records or page.records[0][0] != position.sequence:
            log.warning("kinesis.records_expired", shard=self._shard, checkpoint=position.checkpoint)
            return page
        return page if position.number is not None else page._replace(records=page.records[1:])
