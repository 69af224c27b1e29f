"""Decodes each intact chunk once in a process, and not once for each of the programs that one process simulates.

What is shared is not changed by its readers: headers, encoded entries, and the records of a chunk. Entries are decoded again
for each reader, because states may keep them. A damaged copy is another object, so it is never shared.

Most worlds also leave out the file format: what a reader would decode is kept beside an object of a few bytes, which
no decoder accepts under another path, or once it is damaged. Every fifth seed encodes and decodes Parquet, and a busy one decodes it for every reader.
A run has the same story with each of the three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, partialmethod, wraps
from typing import Any, Final
from unittest.mock import patch

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger import chunk
from headgate.ledger.chunk import RecordColumns
from headgate.ledger.objects import chunk_path
from headgate.ledger.parquet_columns import Columns

SHARED: Final = ("decode_header", "read_bodies", "stored_records")
"""Functions of `headgate.ledger.chunk` whose first argument is a whole object."""
Known = dict[tuple[Any, ...], tuple[bytes, Any]]
"""Identity of an object and arguments → the object, so that its identity is not given to another one, and the result."""


@contextmanager
def decoding_once(*, in_memory: bool = False) -> Iterator[None]:
    """Share the results of decoding until the block ends; ``in_memory``: without a file format."""
    known: dict[str, Known] = {name: {} for name in SHARED}
    kept: dict[bytes, bytes] = {}
    with ExitStack() as stack:
        for name in SHARED:
            stack.enter_context(patch.object(chunk, name, _once(getattr(chunk, name), known[name], kept)))
        if in_memory:
            memory = _ChunkMemory(known, kept)
            stack.enter_context(patch.object(ChunkBuilder, "encode", partialmethod(_keep, memory)))
            stack.enter_context(patch.object(chunk, "open_records", memory.open_records))
        yield


def _once(decode: Callable[..., Any], known: Known, kept: dict[bytes, bytes]) -> Callable[..., Any]:
    """Return ``decode`` with the memory ``known``. Errors are not remembered. ``kept``: see `_ChunkMemory`."""

    @wraps(decode)
    def shared(data: bytes, *args: Any, **options: Any) -> Any:
        data = kept.get(data, data)
        key = (id(data), *args, *options.values())
        found = known.get(key)
        if found is None:
            found = known[key] = data, decode(data, *args, **options)
        return found[1]

    return shared


def _keep(builder: ChunkBuilder, memory: _ChunkMemory, **fields: int) -> bytes:
    return memory.keep(builder, **fields)


class _ChunkMemory:
    """The chunks of one run, as their leaders would have encoded them."""

    def __init__(self, known: dict[str, Known], kept: dict[bytes, bytes]) -> None:
        """``known`` gets what decoding would return, ``kept`` each object: one that was announced is an equal copy."""
        self._known = known
        self._kept = kept
        self._encode = ChunkBuilder.encode
        self._open_records = chunk.open_records
        self._written: dict[int, Callable[[], bytes]] = {}
        """Identity of an object → its Parquet."""

    def keep(self, builder: ChunkBuilder, **fields: int) -> bytes:
        """Keep what is in ``builder``, and return a short object in its place."""
        shard, number = fields["shard"], fields["number"]
        data = b"chunk %d/%d of term %d" % (shard, number, fields["term_id"])
        self._kept[data] = data
        header = chunk.ChunkHeader(
            format=chunk.FORMAT,
            entries=len(builder.entries),
            records=len(builder.records),
            **{"previous_term_id": fields.get("term_id", 0)} | fields,
        )
        known, bodies, records = self._known, list(builder._bodies), RecordColumns()
        records.extend(builder.records)
        known["decode_header"][id(data), shard, number] = data, header
        known["stored_records"][id(data), shard, number] = data, (header, records)
        known["read_bodies"][id(data), chunk_path(shard, number), header] = data, bodies
        self._written[id(data)] = partial(self._encode, builder, **fields)
        return data

    def open_records(self, data: bytes, *, shard: int, number: int) -> tuple[chunk.ChunkHeader, Columns]:
        """Encode and decode an intact chunk: few are read column by column."""
        written = self._written.get(id(data))
        return self._open_records(data if written is None else written(), shard=shard, number=number)
