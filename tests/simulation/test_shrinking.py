"""Every part of the result matters."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.shrinking import shrink


@given(st.sets(st.integers(0, 19)))
def test_what_is_needed_and_only_that_remains(needed: set[int]) -> None:
    assert shrink(range(20), lambda parts: needed <= set(parts)) == sorted(needed)


def test_no_part_of_the_result_can_be_left_out() -> None:
    """A failure that needs an even number of parts cannot lose one, but two."""

    def fails(parts: Sequence[int]) -> bool:
        return len(parts) >= 3 and sum(parts) % 3 == 0

    kept = shrink(range(9), fails)

    assert fails(kept)
    assert not any(fails([part for part in kept if part != left_out]) for left_out in kept)
