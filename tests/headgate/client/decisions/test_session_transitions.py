"""The tables of the producer session, quantified: what every event does, and what no event can do."""

import pytest

from headgate.client.decisions.session_transitions import (
    ATTEMPT_PHASES,
    NUMBERINGS,
    PHASES,
    SENDING_PHASES,
    Action,
    Event,
    Numbering,
    Phase,
)
from tests.support.documents.state_diagrams import DOCUMENT, document


@pytest.mark.parametrize("phase", ATTEMPT_PHASES)
def test_every_attempt_ends_with_a_loss_a_failure_or_another_leader(phase):
    """Rule 2."""
    assert (Phase.WAITING, ()) == PHASES[phase][Event.CONNECTION_LOST] == PHASES[phase][Event.LEADER_CHANGED]
    assert (Phase.BACKING_OFF, (Action.SCHEDULE_RETRY,)) == PHASES[phase][Event.ATTEMPT_FAILED]


def test_an_attempt_begins_with_one_batch_alone():
    """Rule 3: no event but the answers to a probe opens the window."""
    opens = {
        (phase, event) for phase, row in PHASES.items() for event, (after, _) in row.items() if after is Phase.STREAMING
    }
    assert {(Phase.PROBING, Event.ALL_ANSWERED), (Phase.STREAMING, Event.BATCH_INVALID)} == opens


def test_every_attempt_is_counted():
    """A request is recognized by its attempt, so a new attempt without a new number would accept old refusals (rule 5)."""
    for phase in (Phase.WAITING, Phase.STREAMING):
        for event, (after, actions) in PHASES[phase].items():
            begins = after in ATTEMPT_PHASES and after is not phase
            assert begins == (Action.BEGIN_ATTEMPT in actions), (phase, event)


@pytest.mark.parametrize("phase", Phase)
def test_fenced_and_closed_are_final(phase):
    """Rule 11."""
    assert {Event.CLOSE_REQUESTED} == set(PHASES[Phase.FENCED])
    assert {} == PHASES[Phase.CLOSED]
    if phase is not Phase.CLOSED:
        assert (Phase.CLOSED, (Action.ABANDON_ALL,)) == PHASES[phase][Event.CLOSE_REQUESTED]
    assert (phase not in (Phase.FENCED, Phase.CLOSED)) == (Event.FENCED in PHASES[phase])


def test_only_a_probe_that_is_out_of_order_restarts_the_history():
    """Rule 12, row 12 of the verdict table: behind the head it is one more failure."""
    restarts = {
        (phase, event)
        for phase, row in PHASES.items()
        for event, (_, actions) in row.items()
        if Action.RESTART_HISTORY in actions
    }
    assert {(Phase.PROBING, Event.PROBE_OUT_OF_ORDER)} == restarts


def test_a_gap_is_closed_only_by_a_new_identity():
    """Rule 9, row 7 of the verdict table: after a gap, the next sequence is 0 of a higher epoch."""
    assert {Event.BUMP_DUE: (Numbering.REOPENING, (Action.COUNT_BUMP,))} == NUMBERINGS[Numbering.GAPPED]
    to_numbered = {
        (state, event)
        for state, row in NUMBERINGS.items()
        for event, (after, _) in row.items()
        if after is Numbering.NUMBERED
    }
    assert {(state, Event.IDENTITY_GRANTED) for state in (Numbering.UNIDENTIFIED, Numbering.REOPENING)} == to_numbered
    for phase in SENDING_PHASES:
        assert (Phase.WAITING, ()) == PHASES[phase][Event.BUMP_DUE]


def test_a_granted_identity_is_adopted_in_every_phase_in_which_its_request_can_be_unanswered():
    """Rule 10: the request of an earlier attempt had the same token."""
    adopts = {
        phase
        for phase, row in PHASES.items()
        if Action.ADOPT_IDENTITY in row.get(Event.IDENTITY_GRANTED, (phase, ()))[1]
    }
    assert {Phase.WAITING, Phase.BACKING_OFF, Phase.OPENING} == adopts


def test_every_state_event_and_action_is_used():
    rows = [row for table in (PHASES, NUMBERINGS) for row in table.values()]
    assert set(Event) == {event for row in rows for event in row}
    assert set(Action) == {action for row in rows for _, actions in row.values() for action in actions}
    assert set(Phase) == set(PHASES) == {after for row in PHASES.values() for after, _ in row.values()}
    assert set(Numbering) == set(NUMBERINGS)


def test_the_diagrams_are_those_of_the_tables():
    assert document() == DOCUMENT.read_text(), "run: python -m tests.support.documents.state_diagrams"
