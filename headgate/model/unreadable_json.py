"""What the decoding of JSON raises if a file, a message or a record does not contain what it should."""

from typing import Final

import msgspec

UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Not JSON or of another form, no UTF-8, or nested more deeply than Python's recursion limit."""
