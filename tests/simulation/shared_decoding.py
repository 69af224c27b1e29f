"""Decodes each intact chunk once in a process, and not once for each of the programs that one process simulates.

What is shared cannot be changed by its readers: headers, columns, and the records of a chunk. Entries are decoded again
for each reader, because states may keep them. A damaged copy is another object, so it is never shared. A run with shared
decoding has the same story as one without; every 100th seed plays without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from headgate.ledger import chunk

SHARED: Final = ("decode_header", "read_first_rows", "decode_records")
"""Functions of `headgate.ledger.chunk` whose first argument is a whole object."""


@contextmanager
def decoding_once() -> Iterator[None]:
    """Share the results of decoding until the block ends."""
    originals = {name: getattr(chunk, name) for name in SHARED}
    try:
        for name, original in originals.items():
            setattr(chunk, name, _once(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(chunk, name, original)


def _once(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``decode`` with a memory that identifies its first argument by identity. Errors are not remembered."""
    known: dict[tuple[Any, ...], tuple[bytes, Any]] = {}

    @wraps(decode)
    def shared(data: bytes, *args: Any, **options: Any) -> Any:
        key = (id(data), *args, *options.values())
        found = known.get(key)
        if found is None:
            # The object is kept, so that its identity is not given to another one.
            found = known[key] = data, decode(data, *args, **options)
        return found[1]

    return shared
