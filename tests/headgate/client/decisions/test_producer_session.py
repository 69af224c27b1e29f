"""The producer session: its table, quantified, and dialogues of events and the commands that follow."""

from typing import get_type_hints

import pytest

from controller.settings.sections import IngestSettings
from headgate.client.decisions.producer_session import ATTEMPT_PHASES, PHASES, SENDING_PHASES, Action, Event, Phase
from headgate.client.decisions.session_batches import REMEMBERED_SECONDS, Identified, Outcome
from headgate.protocol.replies import ProducerIdentity, Rejected
from shard.access.quotas import IDLE_PRODUCER_MS
from tests.support.documents.state_tables import DOCUMENT, document
from tests.support.worlds.session_dialogue import Dialogue, led, streaming

# Opening, probing, streaming


def test_nothing_is_sent_without_a_leader_and_a_connection():
    talk = Dialogue()
    assert [] == talk.offer("a")
    assert [] == talk.leader()
    assert ["open"] == talk.connect()


def test_the_first_batch_is_sent_alone_and_its_commit_opens_the_window():
    talk = led(max_in_flight=3)
    talk.offer("a", "b", "c", "d", "e")
    assert ["a@0"] == talk.identify()
    assert ["b@1", "c@2", "d@3"] == talk.commit("a")
    assert ["e@4"] == talk.commit("b")


@pytest.mark.parametrize(("own", "announced", "expected"), [(2, 64, 2), (5, 2, 2), (5, 5, 5)])
def test_the_window_is_the_smaller_of_the_configured_and_the_announced(own, announced, expected):
    talk = streaming(max_in_flight=own)
    talk.leader(window=announced)
    assert expected == len(talk.offer(*"abcdefgh"))


@pytest.mark.parametrize("reconnected", [False, True])
def test_after_a_long_silence_the_identity_is_opened_before_a_batch_is_sent(reconnected):
    """The leader may have forgotten the producer: what was never sent can have any identity."""
    talk = streaming()
    if reconnected:
        talk.connect(False)
        talk.connect()
    talk.wait(60)
    assert ["open"] == talk.offer("a", "b")
    assert (7, 0) == (talk.opening.producer_id, talk.opening.producer_epoch)
    assert ["a@0"] == talk.identify(8, 0)
    assert ["b@1"] == talk.commit("a")


@pytest.mark.parametrize(("seconds", "sent"), [(30.0, ["a@1", "b@2"]), (30.1, ["open"])])
def test_a_silence_is_long_after_thirty_seconds(seconds, sent):
    """An idle producer is remembered for a minute at least."""
    talk = streaming()
    talk.wait(seconds)
    assert sent == talk.offer("a", "b")


def test_a_silence_is_shorter_than_any_leader_forgets_an_idle_producer():
    hints = get_type_hints(IngestSettings, include_extras=True)
    assert 2 * REMEMBERED_SECONDS <= min(hints["producer_idle_seconds"].__metadata__[0].ge, IDLE_PRODUCER_MS / 1000)


def test_the_identity_says_whether_the_producer_is_new():
    talk = led()
    assert ["open"] == talk._record(talk.session.open(0.0))
    reply = ProducerIdentity(producer_id=1, producer_epoch=4, created=True)
    commands = talk.session.identified(talk.opening.request_id, reply, 0.0)
    assert Identified(created=True) in commands


def test_an_unanswered_open_request_is_repeated_with_the_same_token():
    talk = led()
    talk.offer("a")
    first = talk.opening
    assert ["open"] == talk.wait(5.1)
    assert first.token == talk.opening.token
    assert first.request_id != talk.opening.request_id


def test_a_commit_is_reported_although_earlier_replies_are_missing():
    talk = streaming("a", "b", "c")
    talk.commit("c")
    assert ["0", "c"] == list(talk.outcomes)
    talk.commit("b", "a")
    assert ["0", "c", "b", "a"] == list(talk.outcomes)
    assert None not in talk.replies.values()


def test_a_doubled_reply_changes_nothing():
    talk = streaming("a", "b")
    talk.commit("a")
    assert [] == talk.commit("a", "a")
    assert "b" not in talk.outcomes


def test_only_the_batch_whose_reply_is_missing_is_sent_again():
    """Its offsets are missing; that it is committed is known."""
    talk = streaming("a", "b", "c")
    talk.commit("b", "c")
    assert ["a@1"] == talk.wait(0.2)
    assert ["d@4"] == talk.offer("d")
    talk.commit("a")
    assert ["0", "b", "c", "a"] == list(talk.outcomes)
    assert talk.replies["a"] is not None


def test_a_missing_reply_is_asked_for_after_a_tenth_of_a_second():
    talk = streaming("a", "b")
    talk.commit("b")
    assert [] == talk.wait(0.09)
    assert ["a@1"] == talk.wait(0.02)


def test_a_proven_batch_is_reported_without_offsets_if_they_do_not_arrive():
    talk = streaming("a", "b")
    talk.commit("b")
    assert ["a@1"] == talk.wait(5.0)
    assert "a" not in talk.outcomes
    assert [] == talk.wait(0.2)
    assert (Outcome.COMMITTED, None) == (talk.outcomes["a"], talk.replies["a"])
    assert Phase.STREAMING is talk.session.phase, "the attempt continues"


@pytest.mark.parametrize("end", ["a refusal", "a lost connection", "another leader", "closing"])
def test_the_end_of_an_attempt_reports_proven_batches(end):
    """Offsets are not worth the wait for the next attempt."""
    talk = streaming("a", "b", "c")
    talk.commit("b")
    match end:
        case "a refusal":
            talk.refuse("c", "unavailable")
        case "a lost connection":
            talk.connect(False)
        case "another leader":
            assert ["c@3"] == talk.leader(2)
        case "closing":
            talk._record(talk.session.abandon("closed"))
    assert (Outcome.COMMITTED, None) == (talk.outcomes["a"], talk.replies["a"])


@pytest.mark.parametrize("verdict", ["invalid", "out_of_order", "forgotten", "fenced"])
def test_no_refusal_makes_a_proven_batch_fail(verdict):
    talk = streaming("a", "b", "c")
    talk.commit("b")
    talk.wait(0.2)
    talk.refuse("a", verdict)
    assert Outcome.COMMITTED is talk.outcomes["a"]
    assert talk.outcomes.get("c") is (Outcome.FENCED if verdict == "fenced" else None)


def test_a_refusal_of_an_older_attempt_is_ignored():
    talk = streaming("a")
    old = talk.last["a"]
    talk.refuse("a", "unavailable")
    assert ["a@1"] == talk.wait_for_pause()
    assert [] == talk.refuse(old, "fenced")
    assert Phase.PROBING is talk.session.phase


# Refusals and losses: replay


def test_a_refusal_followed_by_an_acceptance_in_the_same_epoch_keeps_the_order():
    """Restate F10: a is refused, and b would be accepted in the same epoch. b is rejected, and a is sent first."""
    talk = streaming("a", "b")
    talk.refuse("a", "unavailable")
    talk.refuse("b", "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    assert ["b@2"] == talk.commit("a")


def test_pauses_double_up_to_a_second_and_a_commit_resets_them():
    talk = streaming("a")
    pauses = []
    for _ in range(8):
        talk.refuse("a", "unavailable")
        pauses.append(round(talk.session.wake_at - talk.now, 3))
        talk.wait_for_pause()
    assert [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == pauses
    talk.commit("a")
    talk.offer("b")
    talk.refuse("b", "unavailable")
    assert 0.025 == pytest.approx(talk.session.wake_at - talk.now)


def test_the_shortest_pause_has_a_lower_bound():
    talk = streaming("a")
    reply = Rejected(verdict="unavailable", reason="")
    talk.session.rejected(talk.last["a"].request_id, 1, reply, talk.now, 0.0)
    assert Phase.BACKING_OFF is talk.session.phase
    assert 0.0125 == pytest.approx(talk.session.wake_at - talk.now)


def test_a_failed_send_of_an_older_attempt_or_of_a_resolved_batch_changes_nothing():
    talk = streaming()
    resolved = talk.last["0"]
    talk.offer("a")
    old = talk.last["a"]
    talk.refuse("a", "unavailable")
    talk.wait_for_pause()
    for send in (resolved, old):
        assert [] == talk.session.send_failed(send.request_id, talk.now, 1.0)
        assert Phase.PROBING is talk.session.phase


def test_a_failed_send_ends_the_attempt():
    talk = streaming("a", "b")
    talk._record(talk.session.send_failed(talk.last["b"].request_id, talk.now, 1.0))
    assert ["a@1"] == talk.wait_for_pause()


def test_what_a_leader_does_not_answer_soon_after_it_returned_is_sent_again():
    """Its connection was interrupted, so requests and replies of that time are lost."""
    talk = streaming("a", "b")
    assert [] == talk.wait(1.0)
    assert [] == talk.leader(1)
    assert ["a@1"] == talk.wait(0.3)
    assert ["b@2"] == talk.commit("a")


def test_a_request_for_an_identity_is_repeated_too_after_the_leader_returned():
    talk = led()
    assert ["open"] == talk.offer("a")
    token = talk.opening.token
    assert [] == talk.leader(1)
    assert ["open"] == talk.wait(0.3)
    assert token == talk.opening.token


def test_a_leader_that_announces_itself_again_has_a_quarter_of_a_second_to_reply():
    talk = streaming("a")
    talk.leader(1)
    talk.wait(0.24)
    assert Phase.STREAMING is talk.session.phase
    talk.wait(0.02)
    assert Phase.BACKING_OFF is talk.session.phase


def test_batches_that_are_known_to_be_committed_are_not_replayed():
    talk = streaming("a", "b", "c", "d")
    talk.commit("c")
    talk.refuse("d", "unavailable")
    assert ["d@4"] == talk.wait_for_pause()
    assert [Outcome.COMMITTED] * 3 == [talk.outcomes[name] for name in "abc"]


def test_a_refusal_by_a_deposed_leader_of_a_request_to_its_successor_is_ignored():
    talk = streaming()
    talk.leader(2)
    talk.offer("a")
    assert [] == talk.refuse("a", "not_leader", epoch=1)
    assert Phase.BACKING_OFF is not talk.session.phase
    talk.commit("a")
    assert Outcome.COMMITTED is talk.outcomes["a"]


def test_another_leader_ends_the_pause_after_a_refusal():
    talk = streaming("a")
    talk.refuse("a", "not_leader", epoch=3)
    assert Phase.BACKING_OFF is talk.session.phase
    assert ["a@1"] == talk.leader(3)
    assert 3 == talk.last["a"].leader_epoch


# Source positions


def test_behind_a_record_that_may_be_stored_nothing_of_its_source_is_sent_by_this_producer():
    talk = streaming()
    assert ["a@1"] == talk.offer_until("a", talk.now + 10, source="orders")
    talk.connect(False)
    talk.offer_until("b", talk.now + 20, source="orders")
    talk.wait(11)
    assert (Outcome.UNKNOWN, Outcome.FAILED) == (talk.outcomes["a"], talk.outcomes["b"])
    assert talk.session.is_interrupted("orders")
    assert not talk.session.continue_source("orders")
    talk.offer_until("c", talk.now + 20, source="orders")
    talk.offer_until("d", talk.now + 20, source="payments")
    assert Outcome.FAILED == talk.outcomes["c"]
    assert "d" not in talk.outcomes


def test_a_source_continues_behind_a_record_that_is_certainly_not_stored():
    """A batch expires as a whole: its position is that of its last record."""
    talk = streaming()
    talk.connect(False)
    talk.offer_until("a", talk.now + 10, talk.now + 20, source="orders")
    talk.wait(11)
    assert {"a": Outcome.FAILED} == {each: talk.outcomes[each] for each in "a"}
    assert talk.session.continue_source("orders")
    talk.offer_until("b", talk.now + 20, source="orders")
    assert "b" not in talk.outcomes


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


def test_a_doubled_identity_changes_nothing():
    talk = streaming()
    assert [] == talk.identify(9)
    talk.offer("a")
    assert 7 == talk.last["a"].producer_id


def test_a_late_identity_is_no_reply_to_the_request_for_the_next_epoch():
    talk = streaming()
    early = talk.opening
    talk.offer("a")
    talk.refuse("a", "invalid")
    reply = ProducerIdentity(producer_id=7, producer_epoch=0)
    assert [] == talk.session.identified(early.request_id, reply, talk.now)
    assert [] == talk.offer("b")
    assert ["b@0"] == talk.identify(7, 1, reached=1)


def test_an_identity_that_was_requested_without_a_batch_is_requested_once():
    talk = led()
    assert ["open"] == talk._record(talk.session.open(talk.now))
    talk.identify()
    talk.wait(60)
    assert talk.session.wake_at is None


def test_an_identity_that_was_refused_for_good_is_not_requested_again_without_a_batch():
    talk = led()
    talk._record(talk.session.open(talk.now))
    assert ["open rejected: invalid"] == talk.refuse(talk.opening, "invalid")
    assert [] == talk.wait(60)


def test_a_refused_request_is_repeated_with_the_same_token():
    """A copy of it may be late, and be granted: with another token the next request would be fenced."""
    talk = streaming("a")
    talk.refuse("a", "forbidden")
    token = talk.opening.token
    talk.refuse(talk.opening, "forbidden")
    assert Outcome.UNKNOWN is talk.outcomes["a"], "an earlier copy may be late as well"
    assert ["open"] == talk.offer("b")
    assert token == talk.opening.token


def test_a_request_for_an_identity_is_not_repeated_before_its_timeout():
    talk = led()
    talk.offer("a")
    talk._record(talk.session.tick(4.9, 1.0))
    assert Phase.OPENING is talk.session.phase
