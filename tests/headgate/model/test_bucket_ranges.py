"""Whole segments and shares of them, together as keys and in order."""

from headgate.model.bucket_ranges import BucketRange, bucket_bounds, buckets_of, overlaps, segment_of, slice_of


def test_all_buckets_are_the_whole_segment() -> None:
    assert 3 == slice_of(3, 0, 0) == slice_of(3, 0, 16)
    assert BucketRange(3, 0, 8) == slice_of(3, 0, 8)


def test_a_place_goes_out_as_it_came_in() -> None:
    for place in (3, BucketRange(3, 0, 8), BucketRange(3, 8, 16)):
        assert place == slice_of(segment_of(place), *bucket_bounds(place))


def test_places_sort_by_segment_then_bucket() -> None:
    ordered = [0, 1, BucketRange(1, 0, 4), BucketRange(1, 4, 8), 2, BucketRange(3, 0, 16)]

    assert ordered == sorted(ordered[2:] + ordered[:2])
    assert ordered == sorted(ordered[::2] + ordered[1::2])


def test_a_share_overlaps_its_segment_and_what_has_a_bucket_in_common() -> None:
    assert overlaps(1, BucketRange(1, 4, 8))
    assert overlaps(BucketRange(1, 4, 8), 1)
    assert overlaps(BucketRange(1, 0, 8), BucketRange(1, 4, 8))
    assert not overlaps(BucketRange(1, 0, 4), BucketRange(1, 4, 8))
    assert not overlaps(BucketRange(1, 0, 4), BucketRange(2, 0, 4))


def test_people_read_the_last_bucket() -> None:
    assert "3[0-7]" == str(BucketRange(3, 0, 8))
    assert list(range(8)) == list(buckets_of(BucketRange(3, 0, 8)))
