"""The largest object of each kind. Pure.

A reader checks the size before it reads: an endless or huge object under the name of a chunk must not use up the
memory of a process that leads other shards. No store writes what no store reads.
"""

from typing import Final

from headgate.errors import ForeignObjectError

MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024
"""Twice the largest `ingest.queue_bytes`, which limits what waits for the next chunk."""
MAX_BYTES: Final = {"ledger.json": 64 * 1024, "snapshots": 2 * 1024 * 1024 * 1024, "manifests": 256 * 1024 * 1024}
"""First part of a path → limit in bytes; `MAX_CHUNK_BYTES` for all others."""


def max_bytes(path: str) -> int:
    return MAX_BYTES.get(path.partition("/")[0], MAX_CHUNK_BYTES)


def check_size(path: str, size_bytes: int) -> None:
    """Raise ForeignObjectError if the object is larger than any that headgate writes there."""
    if size_bytes > (limit := max_bytes(path)):
        raise ForeignObjectError(
            f"{path} has {size_bytes} bytes, and headgate writes at most {limit} there: remove it, or restore the "
            "object from a copy"
        )
