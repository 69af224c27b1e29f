"""Print results: one JSON document, or a table; sizes, rates and forecasts as text.

``?`` is not known yet, ``-`` does not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import click

if TYPE_CHECKING:
    from headgate.views.subscriptions import Outlook

JSON_HELP: Final = "Print the result as one JSON document."
_GAP = 3
_SHORTEST = 8
"""A text of a table is not cut to fewer characters."""
_PIPE_COLUMNS = 200
UNKNOWN: Final = "?"
NONE: Final = "-"
_EXACT_BELOW: Final = 100
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND: Final = 1000
_OUTLOOKS: Final[dict[Outlook, str]] = {"empty": NONE, "never": "never", "not_tracked": NONE}


def examples(*commands: str) -> str:
    """Return examples for the end of a help text, in a form that click does not wrap."""
    return "\n".join(("\b", "Examples:", *(f"  {command}" for command in commands)))


def print_json(value: Any) -> None:
    """Print ``value`` (structs, lists, numbers, text) as one indented JSON document."""
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[str] = (),
    drop: Sequence[str] = (),
    err: bool = False,
) -> None:
    """Print a table, with ``err`` on standard error. None is "-".

    Columns of numbers, and those named in ``numbers`` whose numbers are texts, are aligned right.
    On a narrow terminal the columns named in ``drop`` are left out, in this order, until the others fit. The last
    column wraps at spaces, and inside a word only if it is longer than the column. Other texts end with "…" if they
    must, numbers never: without its end, one would be another number.
    """
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class TableConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich's own one ends the process with code 1

    values = list(rows)
    right = {*numbers, *(name for row in values for name, cell in zip(columns, row, strict=True) if type(cell) is int)}
    cells = [["-" if cell is None else str(cell) for cell in row] for row in values]
    file = sys.stderr if err else sys.stdout
    width = available_columns(file)
    shown, text_width = fitting_columns(columns, cells, drop, right, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index in shown:
        name, is_last = columns[index], index == len(columns) - 1
        justify: Literal["left", "right"] = "right" if name in right else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if is_last else "ellipsis"
        limit = None if name in right or is_last else text_width
        table.add_column(name, justify=justify, overflow=overflow, no_wrap=not is_last, max_width=limit)
    for row in cells:
        # As Text: brackets in a name must not be parsed as markup.
        table.add_row(*(Text(row[index]) for index in shown))
    TableConsole(file=file, width=width, highlight=False).print(table)
    if len(shown) < len(columns):
        left_out = ", ".join(name for index, name in enumerate(columns) if index not in shown)
        click.echo(f"not shown, for lack of space: {left_out}; see --json", err=True)


def available_columns(file: TextIO) -> int:
    """Return the width of the terminal ``file``, or what other files get."""
    from rich.console import Console  # noqa: PLC0415

    return Console(file=file).width if file.isatty() else _PIPE_COLUMNS


def fitting_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], drop: Sequence[str], numbers: Collection[str], width: int
) -> tuple[list[int], int]:
    """Return the indexes of the columns to show in ``width``, and how wide a text in one but the last may be.

    Those named in ``drop`` are left out first, in order.
    """
    from rich.cells import cell_len  # noqa: PLC0415

    needed = [max(cell_len(text) for text in texts) for texts in zip(columns, *rows, strict=True)]
    words = [word for row in rows for word in row[-1].split()]
    needed[-1] = max(map(cell_len, (columns[-1], *words)))
    shown = list(range(len(columns)))
    for name in drop:
        if sum(needed[index] for index in shown) + _GAP * (len(shown) - 1) <= width:
            break
        shown = [index for index in shown if columns[index] != name]
    texts = [needed[index] for index in shown if index < len(columns) - 1 and columns[index] not in numbers]
    rest = width - _GAP * (len(shown) - 1) - sum(needed[index] for index in shown) + sum(texts)
    fitting = (each for each in range(_SHORTEST, width) if sum(min(each, text) for text in texts) <= rest)
    return shown, max(fitting, default=_SHORTEST)


def format_bytes(size: int) -> str:
    value, unit = float(size), 0
    while value >= _THOUSAND and unit < len(_UNITS) - 1:
        value, unit = value / _THOUSAND, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def rate_text(per_second: float | None) -> str:
    if per_second is None:
        return UNKNOWN
    return f"{per_second:.1f}" if per_second < _EXACT_BELOW else f"{per_second:,.0f}".replace(",", " ")


def outlook_text(outlook: Outlook, drained_in_seconds: float | None) -> str:
    """Return ``4 min``, or ``never`` for a backlog that does not shrink."""
    if outlook == "shrinking" and drained_in_seconds is not None:
        from headgate.model.time_text import duration  # noqa: PLC0415

        return duration(drained_in_seconds)
    return _OUTLOOKS.get(outlook, UNKNOWN)
