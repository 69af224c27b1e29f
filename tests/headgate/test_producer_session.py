"""The producer session as dialogues: what happens, and what it then wants done."""

from __future__ import annotations

import itertools

import pytest

from headgate import messages as m
from headgate.producer_session import ProducerSession
from headgate.session_values import Identified, OpenIdentity, OpenRefused, Outcome, Phase, Resolve, SendBatch


class Dialogue:
    """A session and the other side, spoken by hand. Time stands still unless it is passed."""

    def __init__(self, *, max_in_flight: int = 5, deadline: float = 100.0) -> None:
        self.session = ProducerSession(
            max_in_flight=max_in_flight,
            request_timeout_seconds=5.0,
            request_ids=itertools.count(1),
            tokens=(f"token-{n}" for n in itertools.count(1)),
        )
        self.now = 0.0
        self.deadline = deadline
        self.outcomes: dict[object, Outcome] = {}
        self.replies: dict[object, m.Committed | None] = {}
        self.last: dict[str, SendBatch] = {}
        self.opening: OpenIdentity | None = None

    def _heard(self, commands) -> list[str]:
        """Return what is sent, as "name@sequence" or "open"; remember the rest."""
        said = []
        for command in commands:
            if isinstance(command, SendBatch):
                said.append(f"{command.batch}@{command.sequence}")
                self.last[str(command.batch)] = command
            elif isinstance(command, OpenIdentity):
                said.append("open")
                self.opening = command
            elif isinstance(command, Resolve):
                assert command.batch not in self.outcomes, f"{command.batch} has two outcomes"
                self.outcomes[command.batch] = command.outcome
                self.replies[command.batch] = command.reply
            elif isinstance(command, OpenRefused):
                said.append(f"open refused: {command.verdict}")
        return said

    def offer(self, *names: str) -> list[str]:
        said = []
        for name in names:
            said += self._heard(self.session.offer(name, self.now + self.deadline, self.now))
        return said

    def leader(self, epoch: int = 1, *, pipelining: bool = True, window: int = 64) -> list[str]:
        return self._heard(self.session.leader_announced(epoch, pipelining, window, self.now))

    def connect(self, connected: bool = True) -> list[str]:
        return self._heard(self.session.connection_changed(connected, self.now))

    def identify(self, producer_id: int = 7, epoch: int = 0) -> list[str]:
        assert self.opening is not None
        reply = m.ProducerIdentity(
            request_id=self.opening.request_id,
            leader_epoch=1,
            producer_id=producer_id,
            producer_epoch=epoch,
            source_position=b"here",
        )
        return self._heard(self.session.identified(reply.request_id, reply, self.now))

    def commit(self, *sends: str | SendBatch) -> list[str]:
        said = []
        for send in sends:
            command = self.last[send] if isinstance(send, str) else send
            reply = m.Committed(request_id=command.request_id, leader_epoch=command.leader_epoch, placements=[])
            said += self._heard(self.session.committed(command.request_id, reply, self.now))
        return said

    def refuse(
        self, send: str | SendBatch | OpenIdentity, verdict: m.Verdict, *, epoch: int | None = None
    ) -> list[str]:
        command = self.last[send] if isinstance(send, str) else send
        at = command.leader_epoch if epoch is None else epoch
        reply = m.Refused(request_id=command.request_id, leader_epoch=at, verdict=verdict, reason="so it is")
        return self._heard(self.session.refused(command.request_id, reply, self.now, 1.0))

    def wait(self, seconds: float) -> list[str]:
        until, said = self.now + seconds, []
        while (wake_at := self.session.wake_at) is not None and wake_at <= until:
            self.now = max(self.now, wake_at)
            said += self._heard(self.session.tick(self.now, 1.0))
        self.now = until
        return said

    def wait_for_pause(self) -> list[str]:
        """Until the back-off is over, whatever its length."""
        assert self.session.phase is Phase.BACKING_OFF
        return self.wait(self.session.wake_at - self.now)


def streaming(**settings) -> Dialogue:
    """A session that has opened and probed with batch "0"."""
    talk = Dialogue(**settings)
    talk.connect()
    talk.leader()
    assert ["open"] == talk.offer("0")
    assert ["0@0"] == talk.identify()
    talk.commit("0")
    assert {"0": Outcome.COMMITTED} == talk.outcomes
    return talk


# --- opening, probing, streaming --------------------------------------------------------------------------------------


def test_it_waits_for_a_leader_and_a_connection_before_it_says_anything():
    talk = Dialogue()
    assert [] == talk.offer("a")
    assert [] == talk.leader()
    assert ["open"] == talk.connect()


def test_the_first_batch_goes_alone_and_its_commit_opens_the_window():
    talk = Dialogue(max_in_flight=3)
    talk.connect()
    talk.leader()
    talk.offer("a", "b", "c", "d", "e")
    assert ["a@0"] == talk.identify()
    assert ["b@1", "c@2", "d@3"] == talk.commit("a")
    assert ["e@4"] == talk.commit("b")


@pytest.mark.parametrize(("own", "announced", "expected"), [(2, 64, 2), (5, 2, 2), (5, 5, 5)])
def test_the_window_is_the_smaller_of_our_own_and_the_announced(own, announced, expected):
    talk = streaming(max_in_flight=own)
    talk.leader(window=announced)
    assert expected == len(talk.offer(*"abcdefgh"))


def test_a_leader_without_pipelining_gets_one_batch_at_a_time():
    talk = Dialogue()
    talk.connect()
    talk.leader(pipelining=False)
    talk.offer("a", "b", "c")
    assert ["a@0"] == talk.identify()
    assert ["b@1"] == talk.commit("a")
    assert ["c@2"] == talk.commit("b")


def test_pipelining_may_be_switched_off_while_it_runs():
    talk = streaming()
    assert ["a@1", "b@2"] == talk.offer("a", "b")
    talk.leader(1, pipelining=False)
    assert [] == talk.offer("c")
    assert [] == talk.commit("a")
    assert ["c@3"] == talk.commit("b")


def test_after_a_long_silence_one_batch_goes_alone_again():
    talk = streaming()
    talk.wait(60)
    assert ["a@1"] == talk.offer("a", "b")
    assert ["b@2"] == talk.commit("a")


def test_the_answer_to_opening_carries_the_source_position():
    talk = Dialogue()
    talk.connect()
    talk.leader()
    assert ["open"] == talk._heard(talk.session.open(0.0))
    reply = m.ProducerIdentity(
        request_id=talk.opening.request_id, leader_epoch=1, producer_id=1, producer_epoch=4, source_position=b"line 9"
    )
    commands = talk.session.identified(talk.opening.request_id, reply, 0.0)
    assert Identified(b"line 9") in commands


def test_a_lost_answer_to_opening_is_asked_for_with_the_same_token():
    talk = Dialogue()
    talk.connect()
    talk.leader()
    talk.offer("a")
    first = talk.opening
    assert ["open"] == talk.wait(5.1)
    assert first.token == talk.opening.token
    assert first.request_id != talk.opening.request_id


# --- replies ----------------------------------------------------------------------------------------------------------


def test_outcomes_are_told_head_first():
    talk = streaming()
    talk.offer("a", "b", "c")
    talk.commit("c", "b")
    assert {"0"} == set(talk.outcomes)
    talk.commit("a")
    assert ["0", "a", "b", "c"] == list(talk.outcomes)


def test_a_doubled_reply_changes_nothing():
    talk = streaming()
    talk.offer("a", "b")
    talk.commit("a")
    assert [] == talk.commit("a", "a")
    assert "b" not in talk.outcomes


def test_a_lost_reply_is_asked_for_again_and_what_is_known_is_not_sent_again():
    """Only the head's reply was lost: b and c are known to be committed."""
    talk = streaming()
    talk.offer("a", "b", "c")
    talk.commit("b", "c")
    assert ["a@1"] == talk.wait(0.2)
    talk.commit("a")
    assert ["0", "a", "b", "c"] == list(talk.outcomes)


def test_a_commit_of_an_older_attempt_is_true_and_used():
    talk = streaming()
    talk.offer("a", "b")
    old = talk.last["a"]
    talk.refuse("b", "unavailable")
    talk.wait_for_pause()
    assert ["b@2"] == talk.commit(old)
    assert Outcome.COMMITTED is talk.outcomes["a"]


def test_a_refusal_of_an_older_attempt_is_ignored():
    talk = streaming()
    talk.offer("a")
    old = talk.last["a"]
    talk.refuse("a", "unavailable")
    assert ["a@1"] == talk.wait_for_pause()
    assert [] == talk.refuse(old, "fenced")
    assert Phase.PROBING is talk.session.phase


# --- refusals and losses: carry over ----------------------------------------------------------------------------------


def test_refused_once_and_then_accepted_in_the_same_epoch_keeps_the_order():
    """Restate F10: "not leader" for a, and b of the same epoch would be accepted. b is refused, a comes first again."""
    talk = streaming()
    talk.offer("a", "b")
    talk.refuse("a", "unavailable")
    talk.refuse("b", "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    assert ["b@2"] == talk.commit("a")


def test_first_refused_and_second_offered_restarts_at_the_first():
    """Kafka 15591: whatever comes second may not be the first thing that a leader sees."""
    talk = Dialogue()
    talk.connect()
    talk.leader()
    talk.offer("a")
    talk.identify()
    talk.offer("b")
    talk.refuse("a", "unavailable")
    assert ["a@0"] == talk.wait_for_pause()


def test_a_time_out_carries_everything_over_under_a_new_attempt():
    talk = streaming()
    talk.offer("a", "b")
    attempt = talk.last["a"].attempt
    assert [] == talk.wait(4.9)
    assert ["a@1"] == talk.wait(0.2)
    assert attempt < talk.last["a"].attempt
    assert ["b@2"] == talk.commit("a")


def test_pauses_double_to_a_second_and_a_commit_starts_them_over():
    talk = streaming()
    talk.offer("a")
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


def test_a_pause_without_luck_has_a_floor():
    talk = streaming()
    talk.offer("a")
    reply = m.Refused(request_id=talk.last["a"].request_id, leader_epoch=1, verdict="unavailable", reason="")
    talk.session.refused(reply.request_id, reply, talk.now, 0.0)
    assert Phase.BACKING_OFF is talk.session.phase
    assert 0.01 <= talk.session.wake_at - talk.now


def test_a_lost_connection_replays_when_it_is_back():
    talk = streaming()
    talk.offer("a", "b")
    assert [] == talk.connect(False)
    assert ["a@1"] == talk.connect()
    assert ["b@2"] == talk.commit("a")


def test_a_send_that_could_not_be_handed_over_ends_the_attempt():
    talk = streaming()
    talk.offer("a", "b")
    talk._heard(talk.session.send_failed(talk.last["b"].request_id, talk.now, 1.0))
    assert ["a@1"] == talk.wait_for_pause()


# --- leaders ----------------------------------------------------------------------------------------------------------


def test_a_newer_leader_gets_everything_at_once_at_its_epoch():
    talk = streaming()
    talk.offer("a", "b")
    assert ["a@1"] == talk.leader(2)
    assert 2 == talk.last["a"].leader_epoch


@pytest.mark.parametrize("hint", [1, 2])
def test_a_stale_or_equal_hint_changes_nothing(hint):
    talk = streaming()
    talk.leader(2)
    talk.offer("a")
    assert [] == talk.leader(hint)
    assert ["b@2"] == (talk.commit("a") or talk.offer("b"))
    assert 2 == talk.last["b"].leader_epoch
    talk.connect(False)
    assert ["b@2"] == talk.connect(), "it still knows the leader of epoch 2"
    assert 2 == talk.last["b"].leader_epoch


def test_what_is_known_to_be_committed_is_not_replayed():
    talk = streaming()
    talk.offer("a", "b", "c", "d")
    talk.commit("c")
    talk.refuse("d", "unavailable")
    assert ["a@1"] == talk.wait_for_pause()
    assert ["b@2", "d@4"] == talk.commit("a")


def test_what_a_deposed_leader_says_of_a_request_to_its_successor_is_ignored():
    talk = streaming()
    talk.leader(2)
    talk.offer("a")
    assert [] == talk.refuse("a", "not_leader", epoch=1)
    assert Phase.BACKING_OFF is not talk.session.phase
    talk.commit("a")
    assert Outcome.COMMITTED is talk.outcomes["a"]


def test_after_word_of_a_newer_epoch_it_waits_for_that_leader():
    talk = streaming()
    talk.offer("a")
    talk.refuse("a", "not_leader", epoch=3)
    assert [] == talk.wait(2)
    assert [] == talk.leader(2)
    assert ["a@1"] == talk.leader(3)


def test_waiting_for_a_leader_is_bounded_by_the_deadline():
    talk = Dialogue(deadline=30)
    talk.connect()
    talk.offer("a")
    talk.wait(29.9)
    assert {} == talk.outcomes
    talk.wait(0.1)
    assert {"a": Outcome.NOT_STORED} == talk.outcomes


# --- deadlines, gaps, bumps -------------------------------------------------------------------------------------------


def test_expiry_in_flight_is_unknown_and_numbering_restarts_under_the_next_epoch():
    """KIP-91 rule 22: also on the first try, never refused, never answered."""
    talk = streaming(deadline=10)
    talk.offer("a")
    talk.connect(False)
    talk.wait(10)
    assert Outcome.UNKNOWN is talk.outcomes["a"]
    talk.connect()
    assert ["open"] == talk.offer("b")
    assert (7, 0) == (talk.opening.producer_id, talk.opening.producer_epoch)
    assert ["b@0"] == talk.identify(7, 1)
    assert 1 == talk.last["b"].producer_epoch


def test_what_was_never_sent_is_not_stored():
    talk = streaming(max_in_flight=1, deadline=10)
    talk.offer("a", "b")
    talk.connect(False)
    talk.wait(10)
    assert (Outcome.UNKNOWN, Outcome.NOT_STORED) == (talk.outcomes["a"], talk.outcomes["b"])


def test_refused_and_expired_is_unknown_all_the_same():
    """A refusal speaks for one copy; a broker may have doubled it."""
    talk = streaming(deadline=10)
    talk.offer("a")
    talk.refuse("a", "unavailable")
    talk.connect(False)
    talk.wait(10)
    assert Outcome.UNKNOWN is talk.outcomes["a"]


def test_expiry_waits_for_what_is_before_it():
    talk = streaming(max_in_flight=1, deadline=10)
    talk.offer("a")
    talk.deadline = 5
    talk.offer("b")
    talk.wait(9)
    assert {"0"} == set(talk.outcomes)
    talk.wait(1)
    assert ["0", "a", "b"] == list(talk.outcomes)


def test_what_was_refused_and_waits_for_a_new_number_is_unknown_at_its_deadline():
    talk = streaming(deadline=10)
    talk.wait(60)
    talk.offer("a", "b")
    talk.refuse("a", "out_of_order")
    talk.connect(False)
    talk.wait(10)
    assert (Outcome.UNKNOWN, Outcome.NOT_STORED) == (talk.outcomes["a"], talk.outcomes["b"])


def test_a_commit_behind_the_head_proves_the_head_at_its_deadline():
    talk = streaming(deadline=10)
    talk.offer("a", "b")
    talk.commit("b")
    talk.connect(False)
    talk.wait(10)
    assert (Outcome.COMMITTED, Outcome.COMMITTED) == (talk.outcomes["a"], talk.outcomes["b"])
    assert talk.replies["a"].placements is None
    talk.connect()
    assert ["c@3"] == talk.offer("c"), "there is no gap, so there is no bump"


def test_an_expired_batch_blocks_new_sequences_while_somebody_waits_behind_it():
    talk = streaming(deadline=3)
    talk.offer("a")
    talk.wait(1)
    talk.offer("b")
    talk.wait(2)
    assert ["a"] == [name for name, what in talk.outcomes.items() if what is Outcome.UNKNOWN]
    assert [] == talk.offer("c"), "a may leave a gap, and b is not resolved"
    assert ["open"] == talk.wait(1)
    assert Outcome.UNKNOWN is talk.outcomes["b"]
    assert ["c@0"] == talk.identify(7, 1)


def test_expiry_is_in_order():
    talk = streaming(max_in_flight=2, deadline=3)
    talk.offer("a", "b", "c", "d")
    talk.wait(3)
    assert ["0", "a", "b", "c", "d"] == list(talk.outcomes)
    assert [Outcome.UNKNOWN] * 2 + [Outcome.NOT_STORED] * 2 == list(talk.outcomes.values())[1:]


def test_an_expired_batch_that_is_stored_after_all_leaves_no_gap():
    talk = streaming(deadline=10)
    talk.offer("a")
    talk.wait(2)
    talk.offer("b")
    talk.connect(False)
    talk.wait(8.5)
    talk.offer("c")
    talk.connect()
    assert ["b@2", "c@3"] == talk.commit("a")
    assert 0 == talk.session.bumps


def test_a_bump_that_is_not_answered_is_asked_for_with_the_same_token():
    talk = streaming(deadline=10)
    talk.offer("a")
    talk.connect(False)
    talk.wait(10)
    talk.connect()
    talk.offer("b")
    token = talk.opening.token
    assert ["open"] == talk.wait(5.1)
    assert (token, 7, 0) == (talk.opening.token, talk.opening.producer_id, talk.opening.producer_epoch)


def test_an_exhausted_epoch_gets_a_new_id():
    talk = streaming(deadline=10)
    talk.offer("a")
    talk.connect(False)
    talk.wait(10)
    talk.connect()
    talk.offer("b")
    assert ["b@0"] == talk.identify(99, 0)
    assert 99 == talk.last["b"].producer_id


def test_late_words_about_an_expired_batch_change_nothing():
    talk = streaming(deadline=10)
    talk.offer("a")
    late = talk.last["a"]
    talk.connect(False)
    talk.wait(10)
    talk.connect()
    talk.offer("b")
    assert [] == talk.refuse(late, "fenced")
    assert [] == talk.commit(late)
    assert ["b@0"] == talk.identify(7, 1)


# --- verdicts that end something --------------------------------------------------------------------------------------


def test_fenced_stops_everything_and_nothing_is_renumbered():
    talk = streaming()
    talk.offer("a", "b")
    assert [] == talk.refuse("a", "fenced")
    assert (Outcome.FENCED, Outcome.FENCED) == (talk.outcomes["a"], talk.outcomes["b"])
    assert [] == talk.offer("c")
    assert Outcome.FENCED is talk.outcomes["c"]
    assert [] == talk.wait(60)


def test_fenced_while_opening_says_so():
    talk = Dialogue()
    talk.connect()
    talk.leader()
    talk.offer("a")
    assert ["open refused: fenced"] == talk.refuse(talk.opening, "fenced")
    assert Outcome.FENCED is talk.outcomes["a"]


def test_out_of_order_behind_the_head_never_bumps():
    """librdkafka 4953: a bump for it duplicated another partition."""
    talk = streaming()
    talk.offer("a", "b")
    talk.refuse("b", "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    assert 0 == talk.session.bumps


def test_out_of_order_for_a_head_that_was_not_a_probe_is_tried_again():
    talk = streaming()
    talk.offer("a")
    talk.refuse("a", "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    talk.commit("a")
    assert 0 == talk.session.bumps


def test_a_forgotten_producer_starts_over_without_losing_what_was_surely_refused():
    talk = streaming()
    talk.wait(60)
    talk.offer("a", "b")
    talk.refuse("a", "out_of_order")
    assert ["open"] == talk.wait_for_pause()
    assert ["a@0"] == talk.identify(8, 0)
    assert ["b@1"] == talk.commit("a")


def test_a_forgotten_producer_with_an_open_copy_fails_loudly():
    """The copy that was not answered may be stored: sending it under another number could store it twice."""
    talk = streaming()
    talk.offer("a")
    talk.wait(5.1)  # no answer: sent again, as a probe
    talk.refuse("a", "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    assert [] == talk.refuse("a", "out_of_order")
    assert Outcome.UNKNOWN is talk.outcomes["a"]
    talk.offer("b")
    assert ["open"] == talk.wait_for_pause()
    assert ["b@0"] == talk.identify(8, 0)


def test_a_doubled_refusal_does_not_close_two_copies():
    talk = streaming()
    talk.offer("a")
    talk.wait(5.1)
    probe = talk.last["a"]
    talk.refuse(probe, "out_of_order")
    talk.refuse(probe, "out_of_order")
    assert ["a@1"] == talk.wait_for_pause(), "not numbered anew: the first copy is open"


def test_invalid_fails_one_batch_and_what_is_behind_it_is_numbered_anew():
    talk = streaming()
    talk.offer("a", "bad", "c")
    talk.refuse("bad", "invalid")
    assert {"0": Outcome.COMMITTED, "bad": Outcome.INVALID} == talk.outcomes
    assert [] == talk.offer("d"), "no new sequence before a is resolved"
    assert ["open"] == talk.commit("a")
    assert ["c@0"] == talk.identify(7, 1)
    assert ["d@1"] == talk.commit("c")


def test_invalid_for_what_is_known_to_be_stored_is_a_commit():
    """Its topic was deleted after it had been stored, and its reply was lost."""
    talk = streaming()
    talk.offer("a", "b")
    talk.commit("b")
    talk.refuse("a", "invalid")
    assert (Outcome.COMMITTED, Outcome.COMMITTED) == (talk.outcomes["a"], talk.outcomes["b"])


def test_an_identity_that_is_refused_for_good_fails_what_waits():
    talk = Dialogue()
    talk.connect()
    talk.leader()
    talk.offer("a")
    assert ["open refused: invalid"] == talk.refuse(talk.opening, "invalid")
    assert Outcome.INVALID is talk.outcomes["a"]
    assert ["open"] == talk.offer("b")


def test_closing_says_what_is_unknown_and_what_is_not_stored():
    talk = streaming(max_in_flight=1)
    talk.offer("a", "b")
    talk._heard(talk.session.abandon("closed"))
    assert (Outcome.UNKNOWN, Outcome.NOT_STORED) == (talk.outcomes["a"], talk.outcomes["b"])
