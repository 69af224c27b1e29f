"""The hash must never change: every client and every stored layout depends on it."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import KEY_BUCKETS, key_bucket, key_hash, segment_hash, shard_of


def test_the_hash_equals_published_murmur3_vectors() -> None:
    """MurmurHash3 x86 32-bit with seed 0."""
    assert [0, 0x248BFA47, 0x149BBB7F] == [key_hash(b""), key_hash(b"hello"), key_hash(b"hello, world")]


@given(st.binary(), st.integers(1, 64))
def test_segment_and_bucket_use_different_bits(key: bytes, buckets: int) -> None:
    """The high half chooses the segment, the low half the bucket."""
    whole = key_hash(key)

    assert whole >> 16 == segment_hash(key)
    assert (whole & 0xFFFF) * buckets // 65536 == key_bucket(key, buckets)
    assert 0 <= key_bucket(key, buckets) < buckets


def test_the_shard_depends_only_on_the_name() -> None:
    """A change would move every topic."""
    assert [shard_of(name, 4) for name in ("orders", "telemetry", "a", "b")] == [
        key_hash(name.encode()) % 4 for name in ("orders", "telemetry", "a", "b")
    ]
    assert shard_of("orders", 1) == 0


def test_a_segment_has_sixteen_key_buckets() -> None:
    assert KEY_BUCKETS == 16


def test_a_bucket_depends_on_all_low_sixteen_bits() -> None:
    assert (0x0AAB, 1) == (key_hash(b"94") & 0xFFFF, key_bucket(b"94", 24)), "the last bit decides"
