"""The daemon's side of the drain check: everything that is asked, gathered into as few runs as possible.

Whoever asks while a run is under way shares the next one. A connection that breaks is opened again with a growing,
jittered pause; a query waits for that until its own time is up. Whatever goes wrong raises DrainCheckError, which
its callers take for "not drained yet": a broken checker keeps gates shut and never opens one.

It imports no Spark and starts no process (drain.checker.supervisor does).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from drain.checker.connection import Connection
from drain.protocol import (
    Address,
    AnyResponse,
    BacklogRequest,
    BacklogResponse,
    DrainCheckError,
    DrainedRequest,
    DrainedResponse,
    DrainQuery,
    DrainQueryResult,
    ExternalBacklogQuery,
    fit_into_line,
)
from metrics import events

_A = TypeVar("_A")

__all__ = ["DrainCheckError", "DrainQuery", "SparkDrainChecker"]

RECONNECT_SECONDS: Final = (0.1, 30.0)
"""First and longest pause before connecting again; the Spark process needs some 8 s to start."""
BATCHING_DELAY_SECONDS: Final = 0.02
"""From the first query to asking: those who reach an end together share a run, and do not wait for a second one."""
MAX_PENDING_QUERIES: Final = 10_000
"""Questions that may wait at once: far above one per subscription of a large daemon."""


CONNECT_SECONDS: Final = 5.0
"""A local socket answers at once or not at all; this is for a machine that swaps."""


@dataclass(slots=True)
class _RequestBatch:
    """What the next run is to answer, and who waits for it."""

    drained: list[tuple[DrainQuery, asyncio.Future[DrainQueryResult]]] = field(default_factory=list)
    backlog: list[asyncio.Future[BacklogResponse]] = field(default_factory=list)
    shards: set[int] = field(default_factory=set)
    """Those whose backlog is asked for."""
    external: dict[tuple[int, int], ExternalBacklogQuery] = field(default_factory=dict)
    """(shard, topic id) → the newest query about an external topic of theirs."""
    now_ms: int = 0

    def drop_cancelled(self) -> None:
        """Drop whoever has given up waiting."""
        self.drained = [item for item in self.drained if not item[1].done()]
        self.backlog = [answer for answer in self.backlog if not answer.done()]

    def fail(self, reason: str) -> None:
        """Tell everyone who still waits."""
        waiting: list[asyncio.Future[Any]] = [answer for _, answer in self.drained]
        for answer in waiting + self.backlog:
            if not answer.done():
                answer.set_exception(DrainCheckError(reason))

    def __len__(self) -> int:
        return len(self.drained) + len(self.backlog)


class SparkDrainChecker:
    """Asks the Spark process at one address. An async context manager: open it before asking."""

    def __init__(
        self,
        socket: str,
        *,
        timeout_seconds: float = 60.0,
        on_state: Callable[[events.DrainState, str], None] | None = None,
        observer: events.Observer | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare, without connecting.

        Args:
            socket: ``unix:/path`` or ``tcp:host:port``; raises ConfigError for anything else.
            timeout_seconds: longest wait for one answer, connecting and waiting for its turn included.
            on_state: is told ``ready`` or ``degraded``, and why, whenever that changes.
            observer: receives an event for each answer and failure.
            rng: where the jitter comes from.

        """
        self._observer = observer or events.NoopObserver()
        self._address = Address.parse(socket)
        self._timeout_seconds = timeout_seconds
        self._on_state = on_state
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._ids = itertools.count(1)
        self._pending = _RequestBatch()
        self._in_flight = _RequestBatch()
        self._wake_up = asyncio.Event()
        self._process_ready = asyncio.Event()
        self._connection: Connection | None = None
        self._worker: asyncio.Task[None] | None = None
        self._state = ""

    async def __aenter__(self) -> Self:
        self._worker = asyncio.get_running_loop().create_task(self._run_loop(), name="drain checker")
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
        self._disconnect()
        self._in_flight.fail("the drain checker was closed")
        self._pending.fail("the drain checker was closed")

    def on_process_ready(self) -> None:
        """Connect at once if there is something to ask: whoever watches the process has just seen it answer."""
        self._process_ready.set()

    async def drained(self, query: DrainQuery) -> frozenset[int]:
        """Return the segments among those asked for that are drained.

        Raises:
            DrainCheckError: no answer in time, or none that may be used.

        """
        answer: asyncio.Future[DrainQueryResult] = asyncio.get_running_loop().create_future()
        self._pending.drained.append((query, answer))
        found = await self._await_response(answer)
        if found.error is not None:
            raise DrainCheckError(found.error)
        if found.watermark < query.at_least_chunk:
            raise DrainCheckError(
                f"shard {query.shard} was counted to chunk {found.watermark}, needed is {query.at_least_chunk}"
            )
        return found.drained & query.segments

    async def backlog(
        self, shards: Iterable[int], now_ms: int, external: Iterable[ExternalBacklogQuery] = ()
    ) -> BacklogResponse:
        """Return the backlog of ``shards`` (and perhaps of more), with what could not be counted.

        ``now_ms``: the time by the clock of the shards' leader, for the rates. ``external``: their external topics.

        Raises:
            DrainCheckError: no answer in time, or none that may be used.

        """
        answer: asyncio.Future[BacklogResponse] = asyncio.get_running_loop().create_future()
        self._pending.backlog.append(answer)
        self._pending.shards.update(shards)
        self._pending.external.update((query.topic_key, query) for query in external)
        self._pending.now_ms = max(self._pending.now_ms, now_ms)
        return await self._await_response(answer)

    async def _await_response(self, answer: asyncio.Future[_A]) -> _A:
        assert self._worker is not None, "open the drain checker before asking"
        if len(self._pending) > MAX_PENDING_QUERIES:
            answer.cancel()
            self._pending.drop_cancelled()
            self._observer.observe(events.DrainCheckFailed(reason="failed"))
            raise DrainCheckError(f"{MAX_PENDING_QUERIES} queries wait already")
        self._wake_up.set()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await answer
        except TimeoutError as error:
            self._observer.observe(events.DrainCheckFailed(reason="timed_out"))
            raise DrainCheckError(
                f"no answer from {self._address} within {self._timeout_seconds:g} s", "timed_out"
            ) from error

    async def _run_loop(self) -> None:
        pause, longest = RECONNECT_SECONDS
        while True:
            if not self._wake_up.is_set():
                await self._wake_up.wait()
                await asyncio.sleep(BATCHING_DELAY_SECONDS)
            self._pending.drop_cancelled()
            if not self._pending:
                self._wake_up.clear()
                continue
            try:
                await self._exchange()
            except DrainCheckError as error:
                self._disconnect()
                self._observer.observe(events.DrainCheckFailed(reason=error.failure))
                self._set_state("degraded", str(error))
                if await self._process_ready_within(pause * self._rng.uniform(0.5, 1.0)):
                    pause = RECONNECT_SECONDS[0]
                else:
                    pause = min(2 * pause, longest)
            else:
                pause = RECONNECT_SECONDS[0]
                self._set_state("ready", f"{self._address} answers")

    async def _process_ready_within(self, seconds: float) -> bool:
        """Pause before the next attempt; True if the process was said to be well meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._process_ready.wait()
        except TimeoutError:
            return False
        self._process_ready.clear()
        return True

    async def _exchange(self) -> None:
        """Carry one round to the other side and back. A round that was not sent yet waits for the next attempt."""
        if self._connection is None:
            self._connection = await Connection.open(self._address, CONNECT_SECONDS)
        self._in_flight, self._pending = self._pending, _RequestBatch()
        self._wake_up.clear()
        try:
            await self._send_batch(self._connection, self._in_flight)
        except DrainCheckError as error:
            self._in_flight.fail(str(error))
            raise

    async def _send_batch(self, connection: Connection, batch: _RequestBatch) -> None:
        if batch.drained:
            queries = [query for query, _ in batch.drained]
            reply = await self._send_timed(connection, DrainedRequest(id=next(self._ids), queries=queries))
            if not isinstance(reply, DrainedResponse) or len(reply.answers) != len(queries):
                raise DrainCheckError(f"{self._address} answered something else than was asked", "invalid")
            for (query, waiting), answer in zip(batch.drained, reply.answers, strict=True):
                if answer.error is None:
                    self._observer.observe(events.DrainWatermarkAdvanced(shard=query.shard, chunk=answer.watermark))
                else:
                    self._observer.observe(events.DrainCheckFailed(reason="failed"))
                if not waiting.done():
                    waiting.set_result(answer)
        if batch.backlog:
            external, omitted = fit_into_line(batch.external.values())
            response = await self._send_timed(
                connection,
                BacklogRequest(id=next(self._ids), shards=sorted(batch.shards), now_ms=batch.now_ms, external=external),
            )
            if not isinstance(response, BacklogResponse):
                raise DrainCheckError(f"{self._address} answered something else than was asked", "invalid")
            response.external.extend(omitted)
            for shard, watermark in response.watermarks.items():
                self._observer.observe(events.DrainWatermarkAdvanced(shard=shard, chunk=watermark))
            for _ in response.failures:
                self._observer.observe(events.DrainCheckFailed(reason="failed"))
            for waiter in batch.backlog:
                if not waiter.done():
                    waiter.set_result(response)

    async def _send_timed(self, connection: Connection, request: DrainedRequest | BacklogRequest) -> AnyResponse:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await connection.request(request, self._timeout_seconds)
        self._observer.observe(events.DrainCheckCompleted(seconds=loop.time() - began))
        return reply

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _set_state(self, state: events.DrainState, reason: str) -> None:
        if state != self._state and self._on_state is not None:
            self._on_state(state, reason)
        self._state = state
