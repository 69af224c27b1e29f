"""Takes the steps of long work over turns of the event loop, so that no work stalls it.

Work is a generator that yields the cost of each step before it begins it (`shard.steps`). Steps are taken at once while
the turn has done little; in most shards that is all of them. The rest waits for later turns, in which all waiting work
takes one step after the other, in rotation. Between two turns the loop serves clients and other shards.

The budget of a turn is counted work and not time, so that the same events take the same turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar, cast

from shard.steps import Steps

ResultT = TypeVar("ResultT")

MAX_COST_PER_TURN: Final = 1024
"""Most cost of the steps in one turn, unless a single step costs more. One unit is a segment or a consumer to look
at, about 2 µs."""


class TurnBudget:
    """The cost that all leaders on one event loop spend in one turn. The longest wait goes first in the next turn."""

    def __init__(self, max_cost: int = MAX_COST_PER_TURN) -> None:
        self._max_cost = max_cost
        self._spent = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_spend(self, cost: int) -> bool:
        """Spend ``cost`` if this turn has capacity and no driver waits; return whether it does."""
        if self._waiting or (self._spent and self._spent + cost > self._max_cost):
            return False
        self.charge(cost)
        return True

    def charge(self, cost: int) -> None:
        """Count work that is done in this turn, whether or not it has capacity."""
        if self._spent == 0:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._spent += max(cost, 1)

    async def spend(self, cost: int) -> None:
        """Return in a turn with capacity for ``cost``, in order of the calls."""
        if not self.try_spend(cost):
            admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((cost, admitted))
            await admitted

    def _begin_turn(self) -> None:
        """Admit the drivers that wait, as far as the next turn has capacity."""
        self._spent = admitted_cost = 0
        while self._waiting and (admitted_cost == 0 or admitted_cost + self._waiting[0][0] <= self._max_cost):
            cost, admitted = self._waiting.popleft()
            if not admitted.done():  # Else the task that waited was cancelled.
                admitted.set_result(None)
                admitted_cost += max(cost, 1)
        if admitted_cost:
            # After the tasks were woken: the next turn begins when they have taken their steps.
            self.charge(admitted_cost)


class StepDriver:
    """The work of one leader term that is under way."""

    def __init__(self, budget: TurnBudget | None = None) -> None:
        """``budget`` is shared by all drivers of an event loop; None: there is no other driver."""
        self._budget = TurnBudget() if budget is None else budget
        self._under_way: deque[tuple[int, Steps[None]]] = deque()
        """Work, with the cost of its next step."""
        self._wake = asyncio.Event()

    def begin(self, steps: Steps[None]) -> None:
        """Take ``steps``: those that this turn has capacity for now, the others in later turns."""
        try:
            cost = next(steps)
            while not self._under_way and self._budget.try_spend(cost):
                cost = next(steps)
        except StopIteration:
            return
        self._continue_later(cost, steps)

    def do(self, cost: int, work: Callable[[], None]) -> None:
        """Do ``work``, which is one step: now if nothing waits and this turn has capacity, otherwise later."""
        self.begin(_one_step(cost, work))

    def do_later(self, cost: int, work: Callable[[], None]) -> None:
        steps = _one_step(cost, work)
        self._continue_later(next(steps), steps)

    def charge(self, cost: int) -> None:
        """Count work that was done in this turn without steps, so that more work waits for the next one."""
        self._budget.charge(cost)

    async def complete(self, steps: Steps[ResultT]) -> ResultT:
        """Take ``steps`` in the calling task, and return their result. What they raise is the caller's."""
        while True:
            try:
                cost = next(steps)
            except StopIteration as end:
                return cast("ResultT", end.value)
            await self._budget.spend(cost)

    async def run(self) -> None:
        """Take the steps that wait, until cancelled; raises what a bug in them raised."""
        while True:
            while not self._under_way:
                self._wake.clear()
                await self._wake.wait()
            await self._budget.spend(self._under_way[0][0])
            _, steps = self._under_way[0]
            cost = next(steps, None)
            self._under_way.popleft()
            if cost is not None:
                self._under_way.append((cost, steps))

    def _continue_later(self, cost: int, steps: Steps[None]) -> None:
        self._under_way.append((cost, steps))
        self._wake.set()


class SerialSteps:
    """Takes the steps of one work after the other, and not in rotation: each is complete earlier, and none later.

    One for all shards of an event loop. The states that a daemon restores at its start are as many as its shards: those
    that it is to lead are urgent, and go before those of shards that it follows, also before one that has begun.
    """

    def __init__(self, budget: TurnBudget, on_complete: Callable[[], None]) -> None:
        self.budget = budget
        self._on_complete = on_complete
        self._urgencies: dict[asyncio.Event, Callable[[], bool]] = {}
        """Event that begins the turn of a work → whether it is urgent, in order of the calls. Urgent ones go first."""

    async def complete(self, steps: Steps[ResultT], is_urgent: Callable[[], bool]) -> ResultT:
        """Take ``steps``, and return their result or raise what they raise. ``is_urgent`` is asked before each step."""
        turn, cost = asyncio.Event(), 0
        self._urgencies[turn] = is_urgent
        try:
            while True:
                while (first := min(self._urgencies, key=lambda each: not self._urgencies[each]())) is not turn:
                    first.set()
                    turn.clear()
                    await turn.wait()
                await self.budget.spend(cost)
                cost = next(steps)
        except StopIteration as end:
            self._on_complete()
            return cast("ResultT", end.value)
        finally:
            del self._urgencies[turn]
            for each in self._urgencies:
                each.set()


def _one_step(cost: int, work: Callable[[], None]) -> Steps[None]:
    yield cost
    work()
