"""A drain checker without a Spark process: answers from published results. Imports no Spark.

It polls for the results of a job that cron, Airflow or `spark-submit` runs (``headgate drain job``).

1. A segment that is drained at a seek generation stays drained at it: ends of sealed segments are
   final, and acknowledgements are never taken back. So any result may answer a query. Other
   segments are not drained *yet*; ``on_result`` announces newer results.
2. A result that cannot be read, or counts another ledger, is ignored; the last usable one stays in use.
3. Tables of external topics are not read; a reply says so where a value is unknown.
4. If a query needs a newer chunk and no newer result appears for ``stale_seconds``, the job has
   stopped: the state becomes ``degraded``, as it is while a shard has no result at all. Gates stay closed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Self

from drain import protocol
from drain.backlog.merge import drained, outstanding
from drain.backlog.results import Result, ResultError, read_result, watermarks
from drain.external.backlog import backlog_from_ledger
from headgate.backoff import Backoff
from headgate.errors import StoreError
from headgate.process.background import BackgroundService
from headgate.storage.object_store import Store
from metrics import events
from metrics.label_values import DrainState

POLLS: Final = Backoff(first_seconds=5.0, longest_seconds=60.0, jitter=0)
"""Pauses between polls, a listing of a few names for each shard that was queried: the first one while a query waits for
a newer result, and longer ones while none does."""
TABLES_NOT_READ: Final = (
    "published results (drain.results) do not include its tables; counting them needs the daemon's Spark process"
)


@dataclass(slots=True)
class _ShardState:
    result: Result | None = None
    rows: tuple[protocol.Backlog, ...] = ()
    fault: str | None = None
    """Why the last poll failed."""
    wanted_chunk: int = 0
    """The newest chunk that a query needed."""
    stale_since: float | None = None
    """Loop time since which the result is older than that chunk, without a newer result."""
    polled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def watermark(self) -> int:
        return 0 if self.result is None else self.result.watermark

    @property
    def is_waited_for(self) -> bool:
        return self.watermark < self.wanted_chunk


@dataclass(eq=False, repr=False)
class ResultsChecker(BackgroundService):
    """Answers from the results in one store, while entered as a context manager."""

    task_name = "drain results"

    store: Store
    _: KW_ONLY
    stale_seconds: float
    observer: events.Observer
    on_state: Callable[[DrainState, str], None]
    on_result: Callable[[], None]
    """Called when any shard has a newer result."""
    url: str
    require_ledger: protocol.RequireLedger = protocol.any_ledger
    _shards: dict[int, _ShardState] = field(default_factory=dict)
    _wake_up: asyncio.Event = field(default_factory=asyncio.Event)
    _state: tuple[DrainState, str] | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._set_state()
        return self

    async def drained(self, query: protocol.DrainQuery) -> protocol.DrainedResponse:
        """Return which of the segments in ``query`` are drained; raises DrainCheckError if there is no result."""
        shard = self._shard_state(query.shard)
        if not shard.is_waited_for and query.at_least_chunk > shard.watermark:
            self._wake_up.set()
        shard.wanted_chunk = max(shard.wanted_chunk, query.at_least_chunk)
        await self._newest_result(query.shard)
        rows = [
            row for row in shard.rows if (row.topic_id, row.subscription_id) == (query.topic_id, query.subscription_id)
        ]
        found = drained(rows, query.seek_generation, query.segments)
        return protocol.DrainedResponse(id=0, drained=found, watermark=shard.watermark)

    async def backlog(self, request: protocol.BacklogRequest) -> protocol.BacklogResponse:
        """Return the backlog of a shard as of its newest result, without rates; raises like `drained`."""
        result = await self._newest_result(request.shard)
        queries = {query.topic_id: query for query in request.external}
        return protocol.BacklogResponse(
            id=0,
            rows=[row for row in self._shards[request.shard].rows if row.topic_id not in queries],
            as_of_ms=result.at_ms,
            external=[
                backlog_from_ledger(query, result.rows, result.at_ms, TABLES_NOT_READ) for query in queries.values()
            ],
            watermark=result.watermark,
        )

    async def _newest_result(self, number: int) -> Result:
        shard = self._shard_state(number)
        await shard.polled.wait()
        if shard.result is None:
            raise protocol.DrainCheckError(shard.fault or f"no result of shard {number} was read yet")
        return shard.result

    def _shard_state(self, number: int) -> _ShardState:
        if number not in self._shards:
            self._shards[number] = _ShardState()
            self._wake_up.set()
        return self._shards[number]

    async def _run(self) -> None:
        idle_polls = 0
        while True:
            self._wake_up.clear()
            newer = [await self._poll(number, shard) for number, shard in list(self._shards.items())]
            self._set_state()
            if any(newer):
                self.on_result()
            awaited = any(newer) or any(each.is_waited_for or each.fault for each in self._shards.values())
            idle_polls = 0 if awaited else idle_polls + 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLLS.bound_seconds(idle_polls)):
                    await self._wake_up.wait()

    async def _poll(self, number: int, shard: _ShardState) -> bool:
        """Read the newest result of one shard if it is newer than the last one; return whether it is."""
        newer = False
        try:
            found = await watermarks(self.store, number, after=shard.watermark)
            if found:
                result = await read_result(self.store, number, found[-1])
                self.require_ledger(protocol.CountedLedger(result.ledger_id, self.url))
                shard.result, shard.rows, newer = result, outstanding(result.rows), True
                self.observer.observe(events.DrainWatermarkAdvanced(shard=number, chunk=result.watermark))
        except (StoreError, ResultError, protocol.DrainCheckError) as error:
            shard.fault = str(error)
            failure = error.failure if isinstance(error, protocol.DrainCheckError) else "failed"
            self.observer.observe(events.DrainCheckFailed(reason=failure))
        else:
            unpublished = f"no result of shard {number} has been published at {self.url} yet (headgate drain job)"
            shard.fault = unpublished if shard.result is None else None
        now = asyncio.get_running_loop().time()
        if not shard.is_waited_for:
            shard.stale_since = None
        elif newer or shard.stale_since is None:
            shard.stale_since = now
        shard.polled.set()
        return newer

    def _set_state(self) -> None:
        state = self._current_state()
        if state != self._state:
            self.on_state(*state)
        self._state = state

    def _current_state(self) -> tuple[DrainState, str]:
        now = asyncio.get_running_loop().time()
        for number, shard in sorted(self._shards.items()):
            if shard.fault is not None:
                return "degraded", shard.fault
            if shard.stale_since is not None and now - shard.stale_since > self.stale_seconds:
                return "degraded", (
                    f"shard {number} is counted to chunk {shard.watermark}, chunk {shard.wanted_chunk} is needed, and "
                    f"no newer result came for {self.stale_seconds:g} s (drain.results_stale_seconds): check that "
                    "the backlog job still runs"
                )
        return "ready", "published results are polled"
