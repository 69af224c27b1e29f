"""Acknowledged offsets of one segment, from the first acknowledgement on."""

from shard.state.progress import AcknowledgementProgress


def test_at_first_nothing_is_acknowledged() -> None:
    assert 5 == AcknowledgementProgress().remaining(5)


def test_ranges_without_a_gap_move_the_position() -> None:
    progress = AcknowledgementProgress()
    progress.add_range(2, 4)
    assert (0, 3) == (progress.position, progress.remaining(5))

    progress.add_range(0, 2)
    assert (4, 1) == (progress.position, progress.remaining(5))


def test_a_position_never_goes_back() -> None:
    progress = AcknowledgementProgress()
    progress.advance(4)
    progress.advance(2)

    assert 4 == progress.position
