"""Holders and preferred owners, drawn from the names that a test knows.

A strategy made from drawn values is built and validated for each example, which took longer than the tests of the
targets. So a holder, and the preferred owners of a key, are each one number, from a strategy that exists once.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

MANY = 420
"""Each number of names up to 7 divides it, so all names are equally likely."""
HOLDER = st.integers(0, 2 * MANY - 1)
PREFERRED_OWNERS = st.integers(0, 3 * MANY * MANY - 1)


def draw_owners(
    draw: st.DrawFn, keys: Sequence[Any], names: Sequence[str]
) -> tuple[dict[Any, str], dict[Any, list[str]]]:
    """Draw key → holder, for about half of the keys, and key → up to two preferred owners."""
    holders = {key: names[number % len(names)] for key in keys if (number := draw(HOLDER)) < MANY}
    preferred = {}
    for key in keys:
        number, how_many = divmod(draw(PREFERRED_OWNERS), 3)
        first, second = divmod(number, MANY)
        if how_many:
            preferred[key] = [names[first % len(names)], names[second % len(names)]][:how_many]
    return holders, preferred
