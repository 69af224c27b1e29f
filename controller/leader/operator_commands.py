"""Answers the requests of operators about daemons and shards: transfers and maintenance.

1. A transfer that succeeds is answered by the new leader, to which the client repeats its request. A daemon that is
   asked for a shard which it leads keeps it: the spread moves others instead.
2. A refusal waits for no barrier: it speaks of daemons, and not of what the ledger holds.
3. At most `MAX_PENDING` requests wait. Further ones are ``unavailable``, so clients repeat them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from controller.decisions.handlers import Deferred, Outcome, Registration, handler
from coordinator.decisions.refusal import Refusal
from headgate.background import cancel_and_wait
from headgate.protocol import messages as m
from metrics import events

MAX_PENDING: Final = 16

Reply = Callable[[m.AnyReplyBody | Refusal], None]


class Operations(Protocol):
    """What a daemon can do for an operator. Both return why it was not done, None if it was."""

    async def transfer(self, shard: int, daemon: str) -> str | None:
        """Transfer a shard that this daemon leads; to itself: keep it."""

    async def set_maintenance(self, daemon: str, *, on: bool) -> str | None:
        """Begin or end the maintenance of a daemon."""


class OperatorCommands:
    """The requests that one term has to answer."""

    def __init__(self, shard: int, instance: str, operations: Operations | None, observer: events.Observer) -> None:
        """``operations`` None: this leader is in no daemon that has others."""
        self._shard = shard
        self._instance = instance
        self._operations = operations
        self._observer = observer
        self._pending: set[asyncio.Task[None]] = set()

    def handlers(self) -> list[Registration]:
        return [handler(m.TransferShard, self._transfer), handler(m.SetMaintenance, self._set_maintenance)]

    async def close(self) -> None:
        """Drop what waits: clients repeat their requests to the next leader."""
        await cancel_and_wait(*self._pending)

    def _transfer(self, request: m.TransferShard, _: str) -> Outcome:
        return self._defer(lambda operations, reply: self._move(operations, request, reply))

    def _set_maintenance(self, request: m.SetMaintenance, _: str) -> Outcome:
        return self._defer(lambda operations, reply: self._maintain(operations, request, reply))

    def _defer(self, work: Callable[[Operations, Reply], object]) -> Outcome:
        if self._operations is None or len(self._pending) >= MAX_PENDING:
            self._observer.observe(events.RequestLimitReached(limit="operator_commands"))
            return Refusal("unavailable", f"{len(self._pending)} requests of operators wait")
        return Deferred(partial(self._start, work, self._operations))

    def _start(self, work: Callable[[Operations, Reply], object], operations: Operations, reply: Reply) -> None:
        coroutine = work(operations, reply)
        assert asyncio.iscoroutine(coroutine)
        task = asyncio.get_running_loop().create_task(coroutine, name=f"operator-{self._shard}")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _move(self, operations: Operations, request: m.TransferShard, reply: Reply) -> None:
        problem = await operations.transfer(self._shard, request.daemon)
        if problem is not None:
            reply(Refusal("invalid", problem))
        elif request.daemon == self._instance:
            reply(m.Done())

    async def _maintain(self, operations: Operations, request: m.SetMaintenance, reply: Reply) -> None:
        problem = await operations.set_maintenance(request.daemon, on=request.on)
        reply(m.Done() if problem is None else Refusal("invalid", problem))
