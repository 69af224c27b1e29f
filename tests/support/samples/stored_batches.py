"""The entry of a stored batch."""

from typing import Any

from headgate.model import entries as e


def stored_batch(
    sequence: int = 0, offset: int = 0, count: int = 1, segment: int = 0, **fields: Any
) -> e.RecordsStored:
    """Return an entry whose records begin at ``offset`` of ``segment``, by default in topic 1."""
    placements = [e.Placement(segment, 0, 65535, offset, count)]
    given = {"topic_id": 1, "size_bytes": 10 * count} | fields
    return e.RecordsStored(count=count, placements=placements, sequence=sequence, **given)
