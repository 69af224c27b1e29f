"""Checks of worlds with several shards notice the mistakes for which they exist: each would pass unseen without its check.

The mistakes are planted bugs of the catalogue, whose results change with other code; these seeds are played in every run.
"""

import pytest

from tests.planted_bugs.catalogue import load
from tests.planted_bugs.trial import simulate

pytestmark = pytest.mark.simulation
NOTICED = [
    ("a daemon in maintenance leads on", 3, "is in maintenance and leads shards"),
    ("one state may exceed the limit", 10, "bytes of states, above"),
    ("a difference of two shards stays", 17, "after all faults ended, daemon # leads"),
    ("the first shard is given away by each holder", 10, "were even, had leaders, and changed them"),
    ("a daemon keeps the lock after its term", 101, "after all faults ended, shard # has no leader"),
    ("a stopping daemon gives nothing to one in maintenance", 87, "a send took"),
]
"""Name of the bug, seed, part of the violation."""


@pytest.mark.parametrize(("bug", "seed", "violation"), NOTICED)
def test_a_check_notices_its_mistake(bug: str, seed: int, violation: str) -> None:
    (planted,) = (each for each in load() if each.name == bug)

    seen = simulate(planted, [seed])

    assert seen is not None
    assert violation in seen.how
