"""A sample of the planted bugs is found again, in each commit another one."""

import pytest

from tests.planted_bugs.__main__ import stored_results
from tests.planted_bugs.catalogue import PlantedBug, load
from tests.planted_bugs.trial import seeds_of, simulate
from tests.simulation.test_simulation import first_fresh_seed

SAMPLE = 4
FACTOR, SPARE_SEEDS = 3, 20
"""A bug that some seeds found must be found again by three times as many and a few: other changes move the seeds."""


def sample() -> list[PlantedBug]:
    """Return bugs that the simulator finds soon, chosen by the newest commit."""
    results = stored_results()
    soon = [bug for bug in load() if (seeds := results[bug.key].seeds) is not None and seeds <= SPARE_SEEDS]
    first = first_fresh_seed()
    return [soon[(first + number * len(soon) // SAMPLE) % len(soon)] for number in range(SAMPLE)]


@pytest.mark.simulation
@pytest.mark.parametrize("number", range(SAMPLE))
def test_the_simulator_finds_it_again(number: int) -> None:
    bug = sample()[number]
    before = stored_results()[bug.key].seeds
    assert before is not None

    assert simulate(bug, seeds_of(bug, FACTOR * before + SPARE_SEEDS)) is not None, bug.key


@pytest.mark.simulation
def test_the_unchanged_program_is_not_reported() -> None:
    bug = next(each for each in load() if each.before.endswith("\n"))
    harmless = PlantedBug(**{**vars(bug), "after": bug.before + "\n"})

    assert simulate(harmless, range(1, 4)) is None
