"""Each planted bug replaces a function that exists, wherever it is used, and leaves the right one behind."""

import sys

import pytest

from tests.simulation.nightly import first_failure
from tests.simulation.planted_bugs import BUGS, Bug, planted


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.sentence)
def test_a_bug_replaces_its_function_and_ends(bug: Bug) -> None:
    owner, name = bug.owner
    right = vars(owner)[name]

    with planted(bug):
        assert vars(owner)[name] is not right
        assert callable(vars(owner)[name])
        assert [] == [key for key, module in sys.modules.items() if vars(module).get(name) is right]
    assert vars(owner)[name] is right


def test_sentences_differ() -> None:
    assert len({bug.sentence for bug in BUGS}) == len(BUGS) <= 60


@pytest.mark.simulation
def test_a_seed_finds_a_bug_and_none_without_it() -> None:
    open_gate = BUGS[0]
    right = Bug(open_gate.sentence, open_gate.seam, lambda right, *args: right(*args))

    found = first_failure(open_gate, range(1, 5))
    assert "granted before its ancestor" in found[1]
    assert first_failure(right, range(1, found[0] + 1)) is None
