"""Convert rows of CSV to keyed records, for `headgate produce --csv`. Pure.

Rules:

1. Python's csv module decides what the fields of a row are, strictly: commas, double quotes, a doubled quote inside
   quotes. A row ends with a line feed outside quotes; a carriage return before it is no part of the row.
2. A record's value is the row as a JSON object with the names of the header, or as an array if there is no header.
   All values are strings, with the characters of the field.
3. A column is named by the header, or by its number from 1. A name of the header precedes a number.
4. A row with more or fewer fields than the header, or than the first row, is invalid, and so is an empty key.
5. A blank line is no record and is counted. So is a byte order mark, which is no part of the first row.
6. A header that cannot name each column ends the run: without it, no row is a record.
"""

import csv

import msgspec

from headgate.cli.records import ndjson
from headgate.protocol.request_fields import MAX_RECORD_BYTES


class RowParser:
    """Parses the rows of one source after the other; the first line of each is its header."""

    def __init__(self, form: ndjson.LineFormat, *, has_header: bool) -> None:
        """Without a header, the first row tells the number of columns."""
        # The module's own limit is 128 KiB per field. Rows above the size of a record do not reach it.
        csv.field_size_limit(MAX_RECORD_BYTES)
        self._form = form
        self._has_header = has_header
        self._names: list[str] | None = None
        self._columns: int | None = None

    def parse(self, line: ndjson.Line) -> ndjson.KeyedRecord | ndjson.Header | None:
        """Return what ``line`` contains; None: it is blank. Raises BadLineError."""
        if line.number == 1:
            self._names = self._columns = None
        is_header = self._has_header and line.number == 1
        try:
            return self._parsed(line, is_header=is_header)
        except (UnicodeDecodeError, csv.Error, ndjson.BadLineError) as error:
            bad = error if isinstance(error, ndjson.BadLineError) else ndjson.BadLineError(f"is not CSV: {error}")
            if isinstance(error, UnicodeDecodeError):
                bad = ndjson.BadLineError(f"is not UTF-8 at its byte {error.start + 1}")
            bad.ends = is_header
            raise bad from None

    def _parsed(self, line: ndjson.Line, *, is_header: bool) -> ndjson.KeyedRecord | ndjson.Header | None:
        if line.text is None:
            raise ndjson.BadLineError(
                f"is longer than {MAX_RECORD_BYTES} bytes, the maximum record size: is a quote not closed?"
            )
        text = ndjson.json_text(line, line.text)
        row, has_mark = next(csv.reader([text.decode()], strict=True), []), len(text) < len(line.text)
        if is_header:
            self._set_header(row)
            return ndjson.Header(has_mark)
        return self._record(line, row, has_mark=has_mark) if row else None

    def _set_header(self, row: list[str]) -> None:
        twice = sorted({name for name in row if row.count(name) > 1})
        if not row:
            raise ndjson.BadLineError("is blank, but must be the header; see --no-header")
        if twice:
            raise ndjson.BadLineError(f"is a header with several columns {twice[0]!r}")
        self._names, self._columns = row, len(row)
        for column in (self._form.key_field, self._form.timestamp_field):
            if column is not None:
                self._index(column)

    def _record(self, line: ndjson.Line, row: list[str], *, has_mark: bool) -> ndjson.KeyedRecord:
        if self._columns is None:
            self._columns = len(row)
        if len(row) != self._columns:
            whose = "the header" if self._has_header else "the first row"
            at = f"column {min(len(row), self._columns) + 1} is {'extra' if len(row) > self._columns else 'missing'}"
            raise ndjson.BadLineError(f"has {len(row)} columns, and {whose} has {self._columns}: {at}")
        form, key, at_ms = self._form, self._form.key, None
        if form.key_field is not None:
            key = row[self._index(form.key_field)].encode()
        if not key:
            raise ndjson.BadLineError(f"has an empty text in column {form.key_field!r}; a key must not be empty")
        if form.timestamp_field is not None:
            text, where = row[self._index(form.timestamp_field)], f"column {form.timestamp_field!r}"
            at_ms = ndjson.timestamp_ms(text, where, form)
        value = msgspec.json.encode(row if self._names is None else dict(zip(self._names, row, strict=True)))
        if len(key) + len(value) > MAX_RECORD_BYTES:
            raise ndjson.BadLineError(f"and its key exceed {MAX_RECORD_BYTES} bytes, the maximum record size")
        return ndjson.KeyedRecord(line, key, value, at_ms, has_mark)

    def _index(self, column: str) -> int:
        assert self._columns is not None, "a header or a row was read"
        if self._names is not None and column in self._names:
            return self._names.index(column)
        if column.isascii() and column.isdigit() and 1 <= int(column[:9]) <= self._columns:
            return int(column[:9]) - 1
        known = "" if self._names is None else f" {', '.join(map(repr, self._names[:8]))}, or"
        raise ndjson.BadLineError(f"has no column {column!r}; its columns are{known} 1 to {self._columns}")
