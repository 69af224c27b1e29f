"""The daemon's side of the drain check: everything that is asked, gathered into as few runs as possible.

Whoever asks while a run is under way shares the next one. A connection that breaks is opened again with a growing,
jittered pause; a question waits for that until its own time is up. Whatever goes wrong raises DrainCheckError, which
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
from typing import Any, Final, Protocol, Self, TypeVar

from drain.checker.connection import Connection
from drain.protocol import (
    Address,
    AnyReply,
    AskBacklog,
    AskDrained,
    BacklogTold,
    DrainAnswer,
    DrainCheckError,
    Drained,
    DrainQuestion,
    ExternalQuestion,
    Failure,
    fitting,
)

_A = TypeVar("_A")

__all__ = ["DrainCheckError", "DrainQuestion", "SparkDrainChecker"]

RECONNECT_SECONDS: Final = (0.1, 30.0)
"""First and longest pause before connecting again; the Spark process needs some 8 s to start."""
GATHER_SECONDS: Final = 0.02
"""From the first question to asking: those who reach an end together share a run, and do not wait for a second one."""
WAITING_LIMIT: Final = 10_000
"""Questions that may wait at once: far above one per subscription of a large daemon."""


CONNECT_SECONDS: Final = 5.0
"""A local socket answers at once or not at all; this is for a machine that swaps."""


class CheckObserver(Protocol):
    """Who is told of what the checker hears (metrics)."""

    def drain_run(self, seconds: float) -> None:
        """Tell how long one answer took."""

    def drain_failed(self, reason: Failure) -> None:
        """Tell of questions that were not answered."""

    def drain_watermark(self, shard: int, chunk: int) -> None:
        """Tell the newest chunk that an answer rested on."""


class SilentCheckObserver:
    """Tells nobody."""

    def drain_run(self, seconds: float) -> None:
        """See `CheckObserver`."""

    def drain_failed(self, reason: Failure) -> None:
        """See `CheckObserver`."""

    def drain_watermark(self, shard: int, chunk: int) -> None:
        """See `CheckObserver`."""


@dataclass(slots=True)
class _Round:
    """What the next run is to answer, and who waits for it."""

    drained: list[tuple[DrainQuestion, asyncio.Future[DrainAnswer]]] = field(default_factory=list)
    backlog: list[asyncio.Future[BacklogTold]] = field(default_factory=list)
    shards: set[int] = field(default_factory=set)
    """Those whose backlog is asked for."""
    external: dict[tuple[int, int], ExternalQuestion] = field(default_factory=dict)
    """(shard, topic id) → the newest question about an external topic of theirs."""
    now_ms: int = 0

    def forget_those_who_left(self) -> None:
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
        on_state: Callable[[str, str], None] | None = None,
        observer: CheckObserver | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare, without connecting.

        Args:
            socket: ``unix:/path`` or ``tcp:host:port``; raises ConfigError for anything else.
            timeout_seconds: longest wait for one answer, connecting and waiting for its turn included.
            on_state: is told ``ready`` or ``degraded``, and why, whenever that changes.
            observer: is told of answers and failures.
            rng: where the jitter comes from.

        """
        self._observer = observer or SilentCheckObserver()
        self._address = Address.parse(socket)
        self._timeout_seconds = timeout_seconds
        self._on_state = on_state
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._ids = itertools.count(1)
        self._round = _Round()
        self._under_way = _Round()
        self._wanted = asyncio.Event()
        self._told_well = asyncio.Event()
        self._connection: Connection | None = None
        self._worker: asyncio.Task[None] | None = None
        self._state = ""

    async def __aenter__(self) -> Self:
        self._worker = asyncio.get_running_loop().create_task(self._work(), name="drain checker")
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
        self._under_way.fail("the drain checker was closed")
        self._round.fail("the drain checker was closed")

    def process_is_well(self) -> None:
        """Connect at once if there is something to ask: whoever watches the process has just seen it answer."""
        self._told_well.set()

    async def drained(self, question: DrainQuestion) -> frozenset[int]:
        """Return the segments among those asked for that are drained.

        Raises:
            DrainCheckError: no answer in time, or none that may be used.

        """
        answer: asyncio.Future[DrainAnswer] = asyncio.get_running_loop().create_future()
        self._round.drained.append((question, answer))
        found = await self._awaited(answer)
        if found.error is not None:
            raise DrainCheckError(found.error)
        if found.watermark < question.at_least_chunk:
            raise DrainCheckError(
                f"shard {question.shard} was counted to chunk {found.watermark}, needed is {question.at_least_chunk}"
            )
        return found.drained & question.segments

    async def backlog(
        self, shards: Iterable[int], now_ms: int, external: Iterable[ExternalQuestion] = ()
    ) -> BacklogTold:
        """Return the backlog of ``shards`` (and perhaps of more), with what could not be counted.

        ``now_ms``: the time by the clock of the shards' leader, for the rates. ``external``: their external topics.

        Raises:
            DrainCheckError: no answer in time, or none that may be used.

        """
        answer: asyncio.Future[BacklogTold] = asyncio.get_running_loop().create_future()
        self._round.backlog.append(answer)
        self._round.shards.update(shards)
        self._round.external.update((question.place, question) for question in external)
        self._round.now_ms = max(self._round.now_ms, now_ms)
        return await self._awaited(answer)

    async def _awaited(self, answer: asyncio.Future[_A]) -> _A:
        assert self._worker is not None, "open the drain checker before asking"
        if len(self._round) > WAITING_LIMIT:
            answer.cancel()
            self._round.forget_those_who_left()
            self._observer.drain_failed("failed")
            raise DrainCheckError(f"{WAITING_LIMIT} questions wait already")
        self._wanted.set()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await answer
        except TimeoutError as error:
            self._observer.drain_failed("timed_out")
            raise DrainCheckError(
                f"no answer from {self._address} within {self._timeout_seconds:g} s", "timed_out"
            ) from error

    async def _work(self) -> None:
        pause, longest = RECONNECT_SECONDS
        while True:
            if not self._wanted.is_set():
                await self._wanted.wait()
                await asyncio.sleep(GATHER_SECONDS)
            self._round.forget_those_who_left()
            if not self._round:
                self._wanted.clear()
                continue
            try:
                await self._exchange()
            except DrainCheckError as error:
                self._disconnect()
                self._observer.drain_failed(error.failure)
                self._tell("degraded", str(error))
                if await self._is_told_within(pause * self._rng.uniform(0.5, 1.0)):
                    pause = RECONNECT_SECONDS[0]
                else:
                    pause = min(2 * pause, longest)
            else:
                pause = RECONNECT_SECONDS[0]
                self._tell("ready", f"{self._address} answers")

    async def _is_told_within(self, seconds: float) -> bool:
        """Pause before the next attempt; True if the process was said to be well meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._told_well.wait()
        except TimeoutError:
            return False
        self._told_well.clear()
        return True

    async def _exchange(self) -> None:
        """Carry one round to the other side and back. A round that was not sent yet waits for the next attempt."""
        if self._connection is None:
            self._connection = await Connection.open(self._address, CONNECT_SECONDS)
        self._under_way, self._round = self._round, _Round()
        self._wanted.clear()
        try:
            await self._ask(self._connection, self._under_way)
        except DrainCheckError as error:
            self._under_way.fail(str(error))
            raise

    async def _ask(self, connection: Connection, asked: _Round) -> None:
        if asked.drained:
            questions = [question for question, _ in asked.drained]
            reply = await self._timed(connection, AskDrained(id=next(self._ids), questions=questions))
            if not isinstance(reply, Drained) or len(reply.answers) != len(questions):
                raise DrainCheckError(f"{self._address} answered something else than was asked", "invalid")
            for (question, waiting), answer in zip(asked.drained, reply.answers, strict=True):
                if answer.error is None:
                    self._observer.drain_watermark(question.shard, answer.watermark)
                else:
                    self._observer.drain_failed("failed")
                if not waiting.done():
                    waiting.set_result(answer)
        if asked.backlog:
            external, left_out = fitting(asked.external.values())
            told = await self._timed(
                connection,
                AskBacklog(id=next(self._ids), shards=sorted(asked.shards), now_ms=asked.now_ms, external=external),
            )
            if not isinstance(told, BacklogTold):
                raise DrainCheckError(f"{self._address} answered something else than was asked", "invalid")
            told.external.extend(left_out)
            for shard, watermark in told.watermarks.items():
                self._observer.drain_watermark(shard, watermark)
            for _ in told.failures:
                self._observer.drain_failed("failed")
            for listener in asked.backlog:
                if not listener.done():
                    listener.set_result(told)

    async def _timed(self, connection: Connection, request: AskDrained | AskBacklog) -> AnyReply:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await connection.ask(request, self._timeout_seconds)
        self._observer.drain_run(loop.time() - began)
        return reply

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _tell(self, state: str, reason: str) -> None:
        if state != self._state and self._on_state is not None:
            self._on_state(state, reason)
        self._state = state
