"""Segment slices: whole segments and bucket ranges, as keys and in order."""

from headgate.model.layout import BucketRange, bucket_bounds, buckets_of, overlaps, segment_of, slice_of


def test_a_slice_of_all_buckets_is_the_whole_segment() -> None:
    assert 3 == slice_of(3, 0, 0) == slice_of(3, 0, 16)
    assert BucketRange(3, 0, 8) == slice_of(3, 0, 8)


def test_a_slice_survives_its_written_form() -> None:
    for segment_slice in (3, BucketRange(3, 0, 8), BucketRange(3, 8, 16)):
        assert segment_slice == slice_of(segment_of(segment_slice), *bucket_bounds(segment_slice))


def test_slices_sort_by_segment_then_bucket() -> None:
    ordered = [0, 1, BucketRange(1, 0, 4), BucketRange(1, 4, 8), 2, BucketRange(3, 0, 16)]

    assert ordered == sorted(ordered[2:] + ordered[:2])
    assert ordered == sorted(ordered[::2] + ordered[1::2])


def test_slices_with_a_common_bucket_overlap() -> None:
    assert overlaps(1, BucketRange(1, 4, 8))
    assert overlaps(BucketRange(1, 4, 8), 1)
    assert overlaps(BucketRange(1, 0, 8), BucketRange(1, 4, 8))
    assert not overlaps(BucketRange(1, 0, 4), BucketRange(1, 4, 8))
    assert not overlaps(BucketRange(1, 0, 4), BucketRange(2, 0, 4))


def test_the_displayed_range_includes_the_last_bucket() -> None:
    assert "3[0-7]" == str(BucketRange(3, 0, 8))
    assert list(range(8)) == list(buckets_of(BucketRange(3, 0, 8)))


def test_no_bucket_range_is_before_or_after_itself() -> None:
    bucket_range = BucketRange(0, 0, 8)

    assert not bucket_range < BucketRange(0, 0, 8)
    assert not bucket_range > BucketRange(0, 0, 8)
