"""The daemon's client of the Spark process: sends drain and backlog queries, and reconnects.

1. A connection that breaks, also one without a query, is reopened with short pauses and jitter: those who would ask
   pause for much longer after failures. The state is `degraded` until the process answers a ping. A query that is
   not answered in time says nothing about the process, which may count for long: a ping decides.
2. Every failure raises DrainCheckError, which callers treat as "not drained yet": a broken checker keeps gates
   closed and never opens one.
3. An answer about another ledger is a failure, whatever it says.

Imports no Spark.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from drain import protocol
from drain.checker.connection import Connection
from drain.setting_values import socket_path
from headgate.backoff import Backoff
from headgate.process.background import BackgroundService
from metrics import events
from metrics.events import NoopObserver
from metrics.label_values import DrainState

AnswerT = TypeVar("AnswerT", protocol.DrainedResponse, protocol.BacklogResponse)

RECONNECT_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=1.0)
"""Before reconnecting. The Spark process takes 8 s and more to start, and children of sealed segments wait for each
second of a pause; an attempt that is refused costs less than a millisecond."""
CONNECT_SECONDS: Final = 5.0
"""Longest time for opening a connection. A local socket normally answers at once."""


class SparkDrainChecker(BackgroundService):
    """Queries the Spark process at one address, while entered as a context manager."""

    task_name = "drain checker"

    def __init__(
        self,
        socket: str,
        *,
        pid: Callable[[], int | None] | None = None,
        timeout_seconds: float = 60.0,
        on_state: Callable[[DrainState, str], None] | None = None,
        observer: events.Observer | None = None,
        rng: random.Random | None = None,
        require_ledger: protocol.RequireLedger = protocol.any_ledger,
    ) -> None:
        """Wait for ``timeout_seconds`` at most for a connection, and as long for an answer.

        ``pid``: returns the only process that may answer, None while it does not run. Raises ConfigError if
        ``socket`` is no path of one.
        """
        self._observer = observer or NoopObserver()
        self._path = socket_path(socket)
        self._pid = pid
        self._timeout_seconds = timeout_seconds
        self._on_state = on_state
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._require_ledger = require_ledger
        self._open_requests = 0
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._connection_wanted = asyncio.Event()
        self._failed_attempts = 0
        self._state: DrainState | None = None

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._connected.set()
        if self._connection is not None:
            self._connection.close()

    async def drained(self, query: protocol.DrainQuery) -> protocol.DrainedResponse:
        """Return which of the segments in ``query`` are drained.

        Raises DrainCheckError: no reply in time, an error, or a reply that is based on too old a chunk.
        """
        response = await self._request(protocol.DrainedRequest(query=query), protocol.DrainedResponse, query.shard)
        if response.watermark < query.at_least_chunk:
            raise protocol.DrainCheckError(
                f"shard {query.shard} was counted to chunk {response.watermark}, needed is {query.at_least_chunk}"
            )
        return response

    async def backlog(self, request: protocol.BacklogRequest) -> protocol.BacklogResponse:
        """Return the backlog of a shard; raises DrainCheckError: no reply in time, or an error."""
        sent, omitted = protocol.fit_into_line(request.external)
        response = await self._request(replace(request, external=sent), protocol.BacklogResponse, request.shard)
        response.external.extend(omitted)
        return response

    async def _request(
        self, request: protocol.DrainedRequest | protocol.BacklogRequest, response_type: type[AnswerT], shard: int
    ) -> AnswerT:
        assert self._task is not None, "enter the drain checker before the first query"
        if self._open_requests >= protocol.MAX_OPEN_REQUESTS:
            self._observer.observe(events.DrainCheckFailed(reason="failed"))
            raise protocol.DrainCheckError(f"{protocol.MAX_OPEN_REQUESTS} queries are already waiting")
        loop = asyncio.get_running_loop()
        connection: Connection | None = None
        self._open_requests += 1
        try:
            connection = await self._connect()
            sent_at = loop.time()
            response = await connection.request(request, response_type, self._timeout_seconds)
            self._require_ledger(response.ledger)
        except protocol.DrainCheckError as error:
            if self._task is not None:
                self._on_failure(error, connection)
            if error.failure == "timed_out":
                raise protocol.DrainCheckError(f"{error} (drain.run_timeout_seconds)", "timed_out") from error
            raise
        finally:
            self._open_requests -= 1
        self._failed_attempts = 0
        self._observer.observe(events.DrainCheckCompleted(seconds=loop.time() - sent_at))
        self._set_state("ready", f"{self._path} answers")
        self._observer.observe(events.DrainWatermarkAdvanced(shard=shard, chunk=response.watermark))
        return response

    async def _connect(self) -> Connection:
        """Return the connection, once there is one; raises DrainCheckError if there is none in time."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while self._connection is None:
                    self._connection_wanted.set()
                    self._connected.clear()
                    await self._connected.wait()
                    if self._task is None:
                        raise protocol.DrainCheckError("the drain checker was closed")
                return self._connection
        except TimeoutError as error:
            raise protocol.DrainCheckError(
                f"no answer from {self._path} within {self._timeout_seconds:g} s", "timed_out"
            ) from error

    async def _run(self) -> None:
        while True:
            await self._connection_wanted.wait()
            doubted = self._connection
            if doubted is None and self._failed_attempts:
                await asyncio.sleep(RECONNECT_BACKOFF.seconds(self._failed_attempts - 1, self._rng.random()))
            try:
                connection = self._connection = doubted or await self._open()
            except protocol.DrainCheckError as error:
                self._failed_attempts += 1
                self._on_failure(error)
                continue
            self._connection_wanted.clear()
            self._connected.set()
            if doubted or self._state == "degraded":
                await self._ping(connection)

    async def _open(self) -> Connection:
        pid = None if self._pid is None else self._pid()
        if pid is None and self._pid is not None:
            raise protocol.DrainCheckError("the Spark process does not run", "unreachable")
        return await Connection.open(self._path, CONNECT_SECONDS, pid, self._on_broken)

    async def _ping(self, connection: Connection) -> None:
        """Report the process as ready once it answers. A process that is suspended accepts connections too."""
        try:
            pong = await connection.request(protocol.Ping(name_ledger=True), protocol.Pong, self._timeout_seconds)
            if pong.ledger is not None:
                self._require_ledger(pong.ledger)
        except protocol.DrainCheckError as error:
            self._on_failure(error, connection)
        else:
            self._failed_attempts = 0
            self._set_state("ready", f"{self._path} answers")

    def _on_broken(self, error: protocol.DrainCheckError) -> None:
        """Let `_run` replace the connection."""
        if self._task is not None:
            self._connection = None
            self._failed_attempts += 1
            self._connection_wanted.set()
            self._set_state("degraded", str(error))

    def _on_failure(self, error: protocol.DrainCheckError, connection: Connection | None = None) -> None:
        """Report ``error``. A process that answers can be asked again, unless it counts another ledger."""
        self._observer.observe(events.DrainCheckFailed(reason=error.failure))
        connected = connection is not None and not connection.broken
        if connected and error.failure == "failed":
            self._set_state("ready", f"{self._path} answers")
        elif connected and error.failure == "timed_out":
            self._connection_wanted.set()
        else:
            self._set_state("degraded", str(error))

    def _set_state(self, state: DrainState, reason: str) -> None:
        if state != self._state and self._on_state is not None:
            self._on_state(state, reason)
        self._state = state
