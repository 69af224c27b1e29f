"""Find out where a row of CSV ends: a line feed inside quotes belongs to a field. Pure."""

import re
from typing import Final

_MARKS: Final = re.compile(rb'[",]')
_QUOTE, _COMMA = b'",'


class Quotes:
    """Tells whether a row continues after a line feed: whether what was fed so far ends inside quotes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.is_open = False
        self._is_quoted_field = False
        self._last = _COMMA

    def feed(self, data: bytes) -> None:
        for mark in _MARKS.finditer(data) if self.is_open or b'"' in data else ():
            at = mark.start()
            previous = data[at - 1] if at else self._last
            if self.is_open:
                self.is_open = data[at] != _QUOTE
            elif data[at] == _COMMA:
                self._is_quoted_field = False
            else:
                begins, again = previous == _COMMA, previous == _QUOTE and self._is_quoted_field
                self.is_open = self._is_quoted_field = begins or again
        if data:
            self._last = data[-1]
