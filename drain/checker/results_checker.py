"""The daemon's side of the drain check where somebody else counts: it reads the newest published results.

A job that cron, Airflow or `spark-submit` runs (``python -m drain.backlog.job``) publishes results; this polls for
them, and answers as drain.checker.checker does, without any Spark process. It decides nothing about what counts
(drain.backlog.merge), and imports no Spark.

The rules:

1. What a result says is drained at a seek generation stays drained at that generation: ends of sealed segments are
   final and acknowledgements are never taken back. So a result is answered from at once, however far the ledger has
   gone on since; what it does not say is not drained *yet*, and whoever waits is told of a newer one (``on_result``).
2. A result that cannot be read changes nothing: the last one that could be goes on being answered from.
3. Results are of the ledger alone. Of an external topic they tell where its segments end and what was acknowledged
   here; its tables are read by nobody, and that is said where something is not known.
4. Somebody waits for a chunk, and no newer result came for ``stale_seconds``: the job has stopped. That is told as
   ``degraded``, with the shard and how far it was counted; gates stay shut.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Final, Self

from drain.backlog.merge import Backlog, drained, outstanding
from drain.backlog.results import Result, ResultError, newest_result
from drain.external.backlog import backlog_from_ledger
from drain.protocol import BacklogResponse, BacklogRow, DrainCheckError, DrainQuery, ExternalBacklogQuery
from headgate.errors import StoreError
from headgate.storage.object_store import Store
from metrics import events

POLL_INTERVAL_SECONDS: Final = 5.0
"""Between two looks for newer results: a listing of a few names for each shard that somebody has asked about."""
TABLES_NOT_READ: Final = (
    "published results (drain.results) tell nothing of its tables; a Spark process of the daemon's does"
)


@dataclass(slots=True)
class _ShardState:
    """What is known of one shard."""

    result: Result | None = None
    rows: tuple[Backlog, ...] = ()
    fault: str | None = None
    """Why the last look failed."""
    wanted_chunk: int = 0
    """The newest chunk that anybody has asked about."""
    stale_since: float | None = None
    """Loop time since when the result is behind that, without a newer one."""
    polled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def watermark(self) -> int:
        return 0 if self.result is None else self.result.watermark


class ResultsChecker:
    """Answers from the results below one URL. An async context manager: open it before asking."""

    def __init__(
        self,
        store: Store,
        *,
        stale_seconds: float,
        poll_interval_seconds: float = POLL_INTERVAL_SECONDS,
        on_state: Callable[[events.DrainState, str], None] | None = None,
        on_result: Callable[[], None] | None = None,
    ) -> None:
        """Prepare, without looking.

        Args:
            store: where results are published.
            stale_seconds: after so long without a newer result, while somebody waits, the job is taken to have stopped.
            poll_interval_seconds: between two looks.
            on_state: is told ``ready`` or ``degraded``, and why, whenever that changes.
            on_result: is called when there is a newer result of any shard.

        """
        self._store = store
        self._stale_seconds = stale_seconds
        self._poll_interval_seconds = poll_interval_seconds
        self._on_state = on_state
        self._on_result = on_result
        self._shards: dict[int, _ShardState] = {}
        self._wake_up = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._state: tuple[events.DrainState, str] | None = None

    async def __aenter__(self) -> Self:
        self._worker = asyncio.get_running_loop().create_task(self._run_loop(), name="drain results")
        self._set_state()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        worker, self._worker = self._worker, None
        assert worker is not None, "closed twice"
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker

    async def drained(self, query: DrainQuery) -> frozenset[int]:
        """Return the segments among those asked for that are drained; raises DrainCheckError if nothing is known."""
        shard = self._shard_state(query.shard)
        shard.wanted_chunk = max(shard.wanted_chunk, query.at_least_chunk)
        await shard.polled.wait()
        if shard.result is None:
            reason = shard.fault or f"no result of shard {query.shard} has been published yet"
            raise DrainCheckError(reason)
        rows = [
            row for row in shard.rows if (row.topic_id, row.subscription_id) == (query.topic_id, query.subscription_id)
        ]
        return drained(rows, query.seek_generation, query.segments)

    async def backlog(
        self,
        shards: Iterable[int],
        now_ms: int,  # noqa: ARG002 - drain.checker.checker's port
        external: Iterable[ExternalBacklogQuery] = (),
    ) -> BacklogResponse:
        """Return the backlog of ``shards`` as of their newest results; rates are not known from one result."""
        response = BacklogResponse(id=0, rows=[], failures={})
        queries = {query.topic_key: query for query in external}
        for number in shards:
            shard = self._shard_state(number)
            await shard.polled.wait()
            if shard.result is None:
                response.failures[number] = shard.fault or f"no result of shard {number} has been published yet"
                continue
            response.watermarks[number], response.as_of_ms[number] = shard.watermark, shard.result.at_ms
            response.rows.extend(
                BacklogRow(shard=number, watermark=shard.watermark, drained=row.drained, **asdict(row))
                for row in shard.rows
                if (number, row.topic_id) not in queries
            )
            response.external.extend(
                backlog_from_ledger(query, shard.result.rows, shard.result.at_ms, TABLES_NOT_READ)
                for query in queries.values()
                if query.shard == number
            )
        return response

    def _shard_state(self, number: int) -> _ShardState:
        if number not in self._shards:
            self._shards[number] = _ShardState()
            self._wake_up.set()
        return self._shards[number]

    async def _run_loop(self) -> None:
        while True:
            self._wake_up.clear()
            newer = [await self._poll(number, shard) for number, shard in list(self._shards.items())]
            self._set_state()
            if any(newer) and self._on_result is not None:
                self._on_result()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_seconds):
                    await self._wake_up.wait()

    async def _poll(self, number: int, shard: _ShardState) -> bool:
        """Take over the newest result of one shard; tell whether it is another one than before."""
        try:
            result = await newest_result(self._store, number)
        except (StoreError, ResultError) as error:
            shard.fault = str(error)
            result = None
        else:
            shard.fault = None
        newer = result is not None and result.watermark > shard.watermark
        if newer:
            assert result is not None, "newer than what was known"
            shard.result, shard.rows = result, outstanding(result.rows)
        now = asyncio.get_running_loop().time()
        if shard.watermark >= shard.wanted_chunk:
            shard.stale_since = None
        elif newer or shard.stale_since is None:
            shard.stale_since = now
        shard.polled.set()
        return newer

    def _set_state(self) -> None:
        state = self._current_state()
        if state != self._state and self._on_state is not None:
            self._on_state(*state)
        self._state = state

    def _current_state(self) -> tuple[events.DrainState, str]:
        now = asyncio.get_running_loop().time()
        for number, shard in sorted(self._shards.items()):
            if shard.fault is not None:
                return "degraded", shard.fault
            if shard.stale_since is not None and now - shard.stale_since > self._stale_seconds:
                return "degraded", (
                    f"shard {number} is counted to chunk {shard.watermark}, chunk {shard.wanted_chunk} is waited for, "
                    f"and no newer result came for {self._stale_seconds:g} s: does the job that counts still run?"
                )
        return "ready", "published results are polled"
