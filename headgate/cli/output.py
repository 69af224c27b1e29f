"""Print results: one JSON document, or a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
_PIPE_COLUMNS = 200
"""Width of a table that is not printed on a terminal."""


def examples(*commands: str) -> str:
    """Return examples for the end of a command's help, in a form that click does not wrap."""
    return "\n".join(("\b", "Examples:", *(f"  {command}" for command in commands)))


def print_json(value: Any) -> None:
    """Print ``value`` (structs, lists, numbers, text) as one indented JSON document."""
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = (), err: bool = False
) -> None:
    """Print a table, with ``err`` on standard error; the columns named in ``numbers`` are aligned right."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        # As Text: brackets in a name must not be parsed as markup.
        table.add_row(*(Text(cell) for cell in row))
    file = sys.stderr if err else sys.stdout
    Console(file=file, width=None if file.isatty() else _PIPE_COLUMNS, highlight=False).print(table)
