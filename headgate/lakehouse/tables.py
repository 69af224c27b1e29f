"""What an export asks of a table. Each kind of table is one module.

The position is in the commit that adds the rows, so a table has both or none. A commit fails if another one came
between: then another export writes to the table, and its rows may be the same.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from headgate.errors import HeadgateError
from headgate.lakehouse.table_rows import TableRows
from headgate.model.text import UNREADABLE_JSON
from headgate.reading.topic_position import TopicPosition


class ExportTable(Protocol):
    name: str
    position: TopicPosition | None
    """What the table has; None: nothing."""

    def append(self, rows: pa.Table, position: TopicPosition) -> None:
        """Add ``rows``, and with them the position.

        Raises HeadgateError: nothing was added, because another commit came first (`TableConflictError`), or it is
        unknown.
        """


OpenTable = Callable[[str, TopicPosition, TableRows], ExportTable]
"""Opens the table of a name, or creates it, for a topic, given as the position before all records. Raises
HeadgateError."""
PROPERTY: Final = "headgate.position"
"""Where a table keeps its position, except Delta."""


class TableConflictError(HeadgateError):
    def __init__(self, table: str) -> None:
        super().__init__(
            f"another commit to {table} came first, so nothing was added: one export may write to a table at a time; "
            "start this one again if no other runs"
        )


@contextmanager
def table_errors(
    table: str,
    *conflicts: type[Exception],
    is_stored: Callable[[], bool] = lambda: False,
    missing: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Raise the errors of a library, which have no common base, as one line. They end the export.

    Of a conflict, ``is_stored`` tells whether the table has what was to be committed. Then there is none: a store has
    repeated the commit, because its first answer was lost. It may raise a HeadgateError that names the other commit.
    ``missing``: the table was deleted.
    """
    try:
        yield
    except missing as error:
        raise deleted(table) from error
    except conflicts as error:
        with table_errors(table, missing=missing):
            if is_stored():
                return
        raise TableConflictError(table) from error
    except HeadgateError:
        raise
    except Exception as error:
        raise HeadgateError(f"{table}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    # delta-rs puts a coloured arrow before each cause.
    lines = [re.sub(r"\x1b\[\d*m|↳", "", line).strip() for line in str(error).splitlines()]
    return ": ".join(filter(None, lines)) or type(error).__name__


def foreign_rows(table: str) -> HeadgateError:
    return HeadgateError(f"{table} has rows that no export has written: export to another table")


def deleted(table: str) -> HeadgateError:
    return HeadgateError(
        f"{table} was deleted meanwhile, so nothing was added: start this export again, and it creates the table with "
        "all stored records"
    )


def created_again(table: str) -> HeadgateError:
    return HeadgateError(
        f"{table} was deleted and created again meanwhile, so nothing was added: start this export again, and it "
        "continues behind what the present one has"
    )


def encoded(position: TopicPosition) -> str:
    return msgspec.json.encode(position).decode()


def decoded(text: str | bytes, table: str) -> TopicPosition:
    try:
        return msgspec.json.decode(text, type=TopicPosition)
    except UNREADABLE_JSON as error:
        raise HeadgateError(f"{table} has a position that this version does not read: {error}") from None
