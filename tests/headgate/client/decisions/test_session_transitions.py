"""The table of the producer session, quantified: what every event does, and what no event can do."""

import pytest

from headgate.client.decisions.producer_session import ATTEMPT_PHASES, PHASES, SENDING_PHASES, Action, Event, Phase
from tests.support.documents.state_tables import DOCUMENT, document


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
    assert {(Phase.PROBING, Event.ALL_ANSWERED)} == opens


def test_every_attempt_is_counted():
    """A request is recognized by its attempt, so a new attempt without a new number would accept old refusals (rule 5)."""
    for phase in Phase:
        for event, (after, actions) in PHASES[phase].items():
            begins = after in ATTEMPT_PHASES and phase not in ATTEMPT_PHASES
            assert begins == (Action.BEGIN_ATTEMPT in actions), (phase, event)


@pytest.mark.parametrize("phase", Phase)
def test_fenced_and_closed_are_final(phase):
    """Rule 11."""
    assert {Event.CLOSE_REQUESTED} == set(PHASES[Phase.FENCED])
    assert {} == PHASES[Phase.CLOSED]
    if phase is not Phase.CLOSED:
        assert (Phase.CLOSED, (Action.ABANDON_ALL,)) == PHASES[phase][Event.CLOSE_REQUESTED]
    assert (phase not in (Phase.FENCED, Phase.CLOSED)) == (Event.FENCED in PHASES[phase])


@pytest.mark.parametrize("event", [Event.BATCH_REFUSED, Event.HISTORY_LOST, Event.GAP_FOUND, Event.SILENCE])
def test_what_leaves_a_gap_or_may_be_forgotten_closes_the_epoch_and_ends_the_attempt(event):
    """Rules 9, 12, 13 and 14: nothing is sent under the epoch any more."""
    rows = {phase: row[event] for phase, row in PHASES.items() if event in row}
    expected = {Event.GAP_FOUND: {Phase.WAITING, Phase.BACKING_OFF}, Event.SILENCE: {Phase.WAITING, *SENDING_PHASES}}
    assert expected.get(event, set(SENDING_PHASES)) == set(rows)
    for after, actions in rows.values():
        assert Action.CLOSE_EPOCH in actions
        assert after in (Phase.WAITING, Phase.BACKING_OFF)


def test_a_granted_identity_is_adopted_in_every_phase_in_which_its_request_can_be_unanswered():
    """Rule 10: the request of an earlier attempt had the same token."""
    adopts = {
        phase
        for phase, row in PHASES.items()
        if Action.ADOPT_IDENTITY in row.get(Event.IDENTITY_GRANTED, (phase, ()))[1]
    }
    assert {Phase.WAITING, Phase.BACKING_OFF, Phase.OPENING} == adopts


def test_every_phase_event_and_action_is_used():
    rows = PHASES.values()
    assert set(Event) == {event for row in rows for event in row}
    assert set(Action) == {action for row in rows for _, actions in row.values() for action in actions}
    assert set(Phase) == set(PHASES) == {after for row in PHASES.values() for after, _ in row.values()}


def test_the_diagrams_are_those_of_the_tables():
    assert document() == DOCUMENT.read_text(), "run: python -m tests.support.documents.state_tables"
