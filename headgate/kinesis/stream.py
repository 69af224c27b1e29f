"""The adapter of Kinesis: boto3's client, in threads.

Errors that pass raise `KinesisUnavailableError`; listings and the reader try again. All others raise HeadgateError.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from headgate.backoff import Backoff, BackoffSchedule
from headgate.client.source_listing import ExternalLayout, read_list_shards
from headgate.errors import ConfigError, HeadgateError
from headgate.log.event_log import get_logger

THREADS: Final = 16
"""Requests at the same time. One takes some 20 ms, and a shard is read five times a second at most."""
BACKOFF: Final = Backoff(first_seconds=0.5, longest_seconds=10.0)
LISTING_ATTEMPTS: Final = 7
"""An account may list 20 times a second, and all programs of a team start at once. The pauses take 25 s at most."""
_PASSING: Final = (
    "InternalFailure",
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestExpired",
    "ServiceUnavailable",
    "ThrottlingException",
)

log = get_logger(__name__)


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
    """Of the next page; None: the shard was read to its end."""
    behind_ms: int


class KinesisStream:
    def __init__(self, client: Any, name: str) -> None:
        """``client``: boto3's; None: a new one, from its configuration and environment."""
        self.name = name
        self._client = new_client("kinesis") if client is None else client
        self._threads = ThreadPoolExecutor(THREADS, "headgate-kinesis")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def shards(self) -> ExternalLayout:
        """Return all shards. The source names this very stream: one that is created again by its name is another."""
        summary = await self._list(self._client.describe_stream_summary, StreamName=self.name)
        found = summary["StreamDescriptionSummary"]
        shards: list[Any] = []
        page = await self._list(self._client.list_shards, StreamName=self.name)
        shards += page["Shards"]
        while token := page.get("NextToken"):
            page = await self._list(self._client.list_shards, NextToken=token)
            shards += page["Shards"]
        source = f"{found['StreamARN']} of {found['StreamCreationTimestamp'].timestamp():.0f}"
        return read_list_shards(json.dumps({"Shards": shards}).encode(), source=source)

    async def iterator(self, shard: str, arguments: dict[str, Any]) -> str:
        """Return a new iterator. Raises ShardGoneError, or what the module names."""
        request = partial(self._client.get_shard_iterator, StreamName=self.name, ShardId=shard)
        found: str = (await self._ask(request, **arguments))["ShardIterator"]
        return found

    async def page(self, iterator: str, max_records: int) -> Page:
        """Return the records behind an iterator. Raises IteratorExpiredError, or what the module names."""
        found = await self._ask(self._client.get_records, ShardIterator=iterator, Limit=max_records)
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

    async def _list(self, request: Callable[..., Any], **arguments: Any) -> Any:
        schedule = BackoffSchedule(BACKOFF, random.random)
        for _ in range(1, LISTING_ATTEMPTS):
            try:
                return await self._ask(request, **arguments)
            except KinesisUnavailableError as error:
                log.warning("kinesis.not_listed", reason=str(error))
                await asyncio.sleep(schedule.next_seconds())
        return await self._ask(request, **arguments)

    async def _ask(self, request: Callable[..., Any], **arguments: Any) -> Any:
        from botocore.exceptions import (  # noqa: PLC0415 - in the extra
            BotoCoreError,
            ClientError,
            ConnectionError,  # noqa: A004 - botocore's
            HTTPClientError,
        )

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(request, **arguments))
        except ClientError as error:
            code, status = error.response["Error"]["Code"], error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            if code in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise KinesisUnavailableError(str(error)) from error
            if code == "ExpiredIteratorException":
                raise IteratorExpiredError(str(error)) from error
            if code == "ResourceNotFoundException" and "ShardId" in arguments | getattr(request, "keywords", {}):
                raise ShardGoneError(str(error)) from error
            raise HeadgateError(f"stream {self.name}: {error}") from error
        except (ConnectionError, HTTPClientError) as error:
            raise KinesisUnavailableError(str(error)) from error
        except BotoCoreError as error:
            raise HeadgateError(f"stream {self.name}: {error}") from error


def new_client(service: str) -> Any:
    """Return a client of boto3; raises ConfigError without it."""
    try:
        import boto3  # noqa: PLC0415 - in the extra
    except ImportError as error:
        raise ConfigError(f"boto3 is missing: pip install 'headgate[kinesis]' ({error})") from error
    return boto3.client(service)
