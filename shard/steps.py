"""Long work in steps, between which a daemon serves its clients and other shards. Pure.

Reports about thousands of segments, and restored states. A step yields the cost of the next one before it begins it.
The state may change between two steps, so a report reads copies that its first step takes.
"""

from collections.abc import Generator, Sequence, Sized
from typing import Final, Protocol, TypeVar

ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")

Steps = Generator[int, None, ResultT]
"""Yields costs, in segments or consumers to look at (about 2 µs each); returns the result."""
ITEMS_PER_STEP: Final = 32
COST_PER_ITEM: Final = 8
"""Cost of describing or explaining a segment or consumer: about 16 µs."""

COST_PER_ENCODED_ITEM: Final = 2
"""Cost of encoding a described or explained item, and of sending it."""


class TakeSteps(Protocol):
    """Takes steps over turns of the event loop."""

    async def __call__(self, steps: Steps[ResultT], /) -> ResultT:
        """Return the result of ``steps``; raises what they raise."""


def complete(steps: Steps[ResultT]) -> ResultT:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: ResultT = stop.value
            return result


async def complete_now(steps: Steps[ResultT]) -> ResultT:
    """Take all steps at once: `TakeSteps` where nothing else is served."""
    return complete(steps)


def parts(items: Sequence[ItemT]) -> Generator[tuple[int, Sequence[ItemT]], None, None]:
    for begin in range(0, len(items), ITEMS_PER_STEP):
        part = items[begin : begin + ITEMS_PER_STEP]
        yield len(part) * COST_PER_ITEM, part


def encoding_cost(*reported: Sized) -> int:
    """Return the cost of what follows the last step: the report is encoded and sent as one message."""
    return sum(map(len, reported)) * COST_PER_ENCODED_ITEM
