"""What happened in a run, as a table that a person can read: time, actor, what, result.

Consecutive chunks are one row, and the rows of programs and faults stay as they are. The rows repeat exactly when a seed
is played again. A run keeps all rows; `table` shows the last ones.
"""

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

WIDTH = 80
_TIME, _ACTOR = 9, 14


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that happened. A row with ``entries`` is a chunk: kind of entry → number."""

    at_seconds: float
    actor: str
    what: str
    result: str = ""
    entries: tuple[tuple[str, int], ...] | None = None


@dataclass(slots=True)
class Story:
    """The rows of one run, in order."""

    rows: list[Row] = field(default_factory=list)

    def add(self, at_seconds: float, actor: str, what: str, result: str = "") -> None:
        """Add what a program, a server or a fault did."""
        self.rows.append(Row(at_seconds, actor, what, result))

    def add_chunk(self, at_seconds: float, shard: int, epoch: int, number: int, kinds: Counter[str]) -> None:
        """Add a chunk."""
        entries = tuple(sorted(kinds.items()))
        self.rows.append(Row(at_seconds, f"epoch {epoch}", f"chunk {shard}/{number}", entries=entries))

    def table(self, most_rows: int = 60) -> str:
        """Return the last rows as text of at most 80 columns."""
        folded = [row for _, group in groupby(self.rows, _foldable) for row in _fold(list(group))]
        shown = folded[-most_rows:]
        left_out = [f"… {len(folded) - len(shown)} earlier rows"] if len(folded) > len(shown) else []
        head = f"{'time':>{_TIME}}  {'actor':<{_ACTOR}}  what: result"
        return "\n".join([*left_out, head, *(line for row in shown for line in _lines(row))])


def _foldable(row: Row) -> tuple[str, str] | int:
    """Return what neighbouring chunks have in common; other rows have nothing in common."""
    return id(row) if row.entries is None else (row.actor, row.what.partition("/")[0])


def _fold(group: list[Row]) -> list[Row]:
    first, last = group[0], group[-1]
    if first.entries is None:
        return group
    kinds: Counter[str] = Counter()
    for row in group:
        kinds.update(dict(row.entries or ()))
    what = first.what if len(group) == 1 else f"{first.what} to {last.what.partition('/')[2]}"
    result = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "a barrier"
    return [Row(first.at_seconds, first.actor, what, result)]


def _lines(row: Row) -> list[str]:
    head = f"{row.at_seconds:{_TIME}.2f}  {row.actor[:_ACTOR]:<{_ACTOR}}  "
    text = f"{row.what}: {row.result}" if row.result else row.what
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]
