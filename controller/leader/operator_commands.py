"""Answers the requests of operators about daemons and shards: transfers, maintenance and the feature level.

1. A transfer that succeeds is answered by the new leader, to which the client repeats its request. A daemon that is
   asked for a shard which it leads keeps it: the spread moves others instead.
2. A refusal waits for no barrier: it speaks of daemons, and not of what the ledger holds.
3. At most `MAX_PENDING` requests wait. Further ones are ``unavailable``, so clients repeat them.
4. A repeated token gets the outcome of the first copy, and executes nothing. A transfer is for one term, because it
   ends the term: a copy that arrives in a later one is refused for its envelope. Maintenance outlasts terms, so what
   stores it remembers the tokens as well. A feature level that is reached stays. More shards are stored in place of the
   number that the command names.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from controller.context.leader_context import Operations
from headgate.process.background import cancel_and_wait
from headgate.protocol.replies import Done
from headgate.protocol.requests import RaiseLevel, SetMaintenance, SetShards, TransferShard
from shard.requests.handlers import Deferred, Outcome, Registration, handler
from shard.subscriptions.refusal import Refusal

MAX_PENDING: Final = 64
MAX_REMEMBERED: Final = 256
"""Commands of one term whose outcome is remembered, the latest ones."""

Answer = Done | Refusal | None
"""None: the leader that follows replies."""


class OperatorCommands:
    def __init__(self, shard: int, instance: str, operations: Operations | None) -> None:
        """``operations`` None: this leader is in no daemon that has others."""
        self._shard = shard
        self._instance = instance
        self._operations = operations
        self._tasks: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        """Token of a command → what executes it, or has executed it. The oldest is first."""

    def handlers(self) -> list[Registration]:
        return [
            handler(TransferShard, lambda request, _: self._defer(request.token, partial(self._move, request))),
            handler(RaiseLevel, lambda request, _: self._defer(request.token, partial(self._change, request))),
            handler(SetShards, lambda request, _: self._defer(request.token, partial(self._change, request))),
            handler(SetMaintenance, lambda request, _: self._defer(request.token, partial(self._change, request))),
        ]

    async def close(self) -> None:
        """Drop what waits: clients repeat their requests to the next leader."""
        await cancel_and_wait(*self._tasks.values())

    def _defer(self, token: str, work: Callable[[Operations], Coroutine[None, None, Answer]]) -> Outcome:
        if self._operations is None:
            return Refusal("unavailable", "this leader is in no daemon that knows others")
        return Deferred(
            partial(self._execute_once, token, partial(work, self._operations)), "operator_commands", MAX_PENDING
        )

    async def _execute_once(self, token: str, work: Callable[[], Coroutine[None, None, Answer]]) -> Answer:
        if token not in self._tasks:
            self._tasks[token] = asyncio.get_running_loop().create_task(work(), name=f"operator-{self._shard}")
            if len(self._tasks) > MAX_REMEMBERED and next(iter(self._tasks.values())).done():
                self._tasks.popitem(last=False)
        return await asyncio.shield(self._tasks[token])

    async def _move(self, request: TransferShard, operations: Operations) -> Answer:
        problem = await operations.transfer(self._shard, request.daemon, request.token)
        if problem is not None:
            return Refusal("invalid", problem)
        return Done() if request.daemon == self._instance else None

    async def _change(self, request: RaiseLevel | SetShards | SetMaintenance, operations: Operations) -> Answer:
        match request:
            case RaiseLevel():
                problem = await operations.raise_level(request.level)
            case SetShards():
                problem = await operations.set_shards(request.shards, request.before)
            case SetMaintenance():
                problem = await operations.set_maintenance(request.daemon, on=request.on, token=request.token)
        return Done() if problem is None else Refusal("invalid", problem)
