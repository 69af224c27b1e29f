"""Map a key to a segment and a key bucket with one 32-bit hash. Pure.

The high 16 bits choose the segment, the low 16 the bucket, so a key keeps its bucket across splits
and merges. MurmurHash3 x86 32-bit, seed 0, unsigned, as in Pulsar's scalable topics (PIP-486).
"""

from collections.abc import Iterable

import mmh3

SEGMENT_HASHES = 1 << 16
"""Size of the ring that segments divide: hashes 0x0000 to 0xffff."""
KEY_BUCKETS = 16
"""Key buckets of a segment, and therefore the maximum number of consumers that share one."""


key_hash = mmh3.mmh3_32_uintdigest


def segment_hash(key: bytes) -> int:
    return key_hash(key) >> 16


def segment_hashes(keys: Iterable[bytes]) -> list[int]:
    return [hashed >> 16 for hashed in map(key_hash, keys)]


def key_bucket(key: bytes, buckets: int) -> int:
    """Return the bucket of ``key`` inside its segment, 0 to ``buckets`` - 1."""
    return (key_hash(key) & 0xFFFF) * buckets >> 16


def shard_of(topic: str, shards: int) -> int:
    """Return the shard of ``topic``: the hash of its name modulo a number of shards that the cluster has had."""
    return key_hash(topic.encode()) % shards
