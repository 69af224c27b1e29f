"""Reads one shard from its checkpoint to its end, as fast as Kinesis allows: five requests and 2 MB a second.

1. A page is delivered completely before the next one is asked for.
2. A request that Kinesis refuses for now is repeated after a growing pause. An iterator that has expired is asked for
   again, at the last page.
3. An empty page is no end: only a page without a next iterator is.
4. Kinesis passes over expired records in silence. So the record of the checkpoint is read again. If another one comes
   in its place, or the end, it has expired, and those behind it may have expired unread.
5. With a stream consumer, one page is asked for whenever none is pushed: it tells whether the shard has ended.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from headgate.backoff import BackoffSchedule
from headgate.kinesis.position import Position, iterator_arguments
from headgate.kinesis.stream import BACKOFF, IteratorExpiredError, KinesisStream, KinesisUnavailableError, Page
from headgate.log.event_log import get_logger

REQUEST_SECONDS: Final = 0.2
BYTES_PER_SECOND: Final = 2_000_000
IDLE_SECONDS: Final = 1.0
"""Other programs read the shard too, and share its five requests a second."""
LOGGED_FAILURES: Final = 5

log = get_logger(__name__)


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
