"""What counts as a branch, and that it is recorded what was executed."""

from controller.leadership.transitions import TRANSITIONS, Event, Leadership, Role
from tests.simulation.coverage_report import CoveredPolicy, branches_of

SOURCE = """\
def f(a):
    if a:
        b = 1
    elif a is None:
        b = 2
    else:
        b = 3
    for c in a:
        b = 4
    try:
        b = 5
    except ValueError:
        b = 6
    match a:
        case 1:
            b = 7
    while b:
        b = 0
"""


def test_the_bodies_of_statements_are_branches() -> None:
    assert branches_of(SOURCE) == {3, 5, 7, 9, 13, 16, 18}


def test_transitions_and_branches_are_recorded_only_while_tracing() -> None:
    covered = CoveredPolicy()
    nothing = covered.report()
    Leadership().on(Event.LOCK_ACQUIRED)
    assert covered.report() == nothing

    with covered.tracing():
        Leadership(role=Role.FOLLOWING).on(Event.LOCK_ACQUIRED)

    report = covered.report()
    every = sum(map(len, TRANSITIONS.values()))
    assert nothing["transitions"]["leadership"] == f"0/{every}"
    assert report["transitions"]["leadership"] == f"1/{every}"
    assert type(TRANSITIONS[Role.FOLLOWING]) is dict
