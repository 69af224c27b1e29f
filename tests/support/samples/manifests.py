"""Manifests of compacted ranges, and the objects that they name."""

from typing import Any

from headgate.ledger.compacted import CompactedObject, Manifest


def compacted_object(topic_id: int, segment: int, path: str, **fields: Any) -> CompactedObject:
    """Return an object of the first record of a segment, unless ``fields`` say otherwise."""
    one = {"first_offset": 0, "end_offset": 1, "size_bytes": 1, "first_at_ms": 0, "last_at_ms": 0, "checksum": 0}
    return CompactedObject(path=path, topic_id=topic_id, segment=segment, **one | fields)


def manifest(first: int, last: int, *objects: CompactedObject, **fields: Any) -> Manifest:
    """Return the manifest of chunks ``first`` to ``last`` of shard 0, unless ``fields`` say otherwise."""
    made = {"shard": 0, "level": 0, "written_at_ms": 0, "last_at_ms": 1, "facts": "none", "facts_checksum": 0}
    return Manifest(first=first, last=last, objects=list(objects), **made | fields)
