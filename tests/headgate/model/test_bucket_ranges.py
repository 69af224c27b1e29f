"""Whole segments and shares of them, together as keys and in order."""

from headgate.model.bucket_ranges import Share, bounds_of, buckets_of, overlap, place_of, segment_of


def test_all_buckets_are_the_whole_segment() -> None:
    assert 3 == place_of(3, 0, 0) == place_of(3, 0, 16)
    assert Share(3, 0, 8) == place_of(3, 0, 8)


def test_a_place_goes_out_as_it_came_in() -> None:
    for place in (3, Share(3, 0, 8), Share(3, 8, 16)):
        assert place == place_of(segment_of(place), *bounds_of(place))


def test_places_sort_by_segment_then_bucket() -> None:
    ordered = [0, 1, Share(1, 0, 4), Share(1, 4, 8), 2, Share(3, 0, 16)]

    assert ordered == sorted(ordered[2:] + ordered[:2])
    assert ordered == sorted(ordered[::2] + ordered[1::2])


def test_a_share_overlaps_its_segment_and_what_has_a_bucket_in_common() -> None:
    assert overlap(1, Share(1, 4, 8))
    assert overlap(Share(1, 4, 8), 1)
    assert overlap(Share(1, 0, 8), Share(1, 4, 8))
    assert not overlap(Share(1, 0, 4), Share(1, 4, 8))
    assert not overlap(Share(1, 0, 4), Share(2, 0, 4))


def test_people_read_the_last_bucket() -> None:
    assert "3[0-7]" == str(Share(3, 0, 8))
    assert list(range(8)) == list(buckets_of(Share(3, 0, 8)))
