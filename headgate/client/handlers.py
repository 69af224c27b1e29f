"""Functions to call when something happens, in the order in which they were added."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Generic, TypeVar

HandlerT = TypeVar("HandlerT")


class Handlers(Generic[HandlerT]):
    """Handlers of one event. Adding and removing one costs the same however many there are.

    One that is removed while they are called may still be called this time; one that is added then is not.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._handlers: dict[int, HandlerT] = {}

    def add(self, handler: HandlerT) -> Callable[[], None]:
        """Add ``handler``; return a function that removes it, and does nothing when called again."""
        number = next(self._numbers)
        self._handlers[number] = handler

        def remove() -> None:
            self._handlers.pop(number, None)

        return remove

    def __iter__(self) -> Iterator[HandlerT]:
        return iter(list(self._handlers.values()))
