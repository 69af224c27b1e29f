"""The batches of a producer session: which replies are expected, what is counted, and what gets another number."""

from __future__ import annotations

import pytest

from headgate.client.decisions.session_types import Outcome
from tests.support.worlds.session_dialogue import Dialogue, streaming


def closed(talk: Dialogue) -> None:
    talk._record(talk.session.abandon("closed"))


def fenced(talk: Dialogue) -> None:
    talk.refuse("a", "fenced")


def failed_and_committed(talk: Dialogue) -> None:
    talk.refuse("b", "invalid")
    talk.commit("a")


def proven(talk: Dialogue) -> None:
    talk.commit("b")
    talk.connect(False)


def expired(talk: Dialogue) -> None:
    talk.wait(100)


@pytest.mark.parametrize("end", [closed, fenced, failed_and_committed, proven, expired])
def test_no_reply_about_a_resolved_batch_is_expected_and_a_late_one_changes_nothing(end) -> None:
    talk = streaming()
    assert set() == talk.awaited
    talk.offer("a", "b")
    end(talk)

    assert set() == talk.awaited
    assert 0 == talk.session.unresolved_batches
    outcomes = dict(talk.outcomes)
    assert [] == talk.commit("a", "b")
    assert [] == talk.refuse("b", "invalid")
    assert outcomes == talk.outcomes


@pytest.mark.parametrize("end", [closed, fenced])
def test_the_end_resolves_the_queue(end) -> None:
    talk = streaming(max_in_flight=1)
    talk.offer("a", "b")
    end(talk)

    assert {"0", "a", "b"} == set(talk.outcomes)
    assert 0 == talk.session.unresolved_batches


def test_batches_in_flight_proven_and_queued_are_unresolved() -> None:
    talk = streaming(max_in_flight=2)
    talk.offer(*"abcde")
    assert 5 == talk.session.unresolved_batches
    talk.commit("b")
    assert 4 == talk.session.unresolved_batches, "a is proven, c and d are in flight, e is queued"
    talk.commit("a")
    assert 3 == talk.session.unresolved_batches


def test_a_proven_batch_is_reported_at_the_first_deadline_of_its_records() -> None:
    talk = streaming()
    talk.offer_until("a", 0.05, 20)
    talk.offer("b")
    talk.commit("b")
    talk.wait(0.06)

    assert (Outcome.COMMITTED, None) == (talk.outcomes["a"], talk.replies["a"])
    assert 0 == talk.session.unresolved_batches


def test_a_batch_that_the_leader_knows_after_all_keeps_its_number() -> None:
    talk = streaming()
    talk.offer("a")
    talk.wait(5.1)  # no answer: sent again, as a probe
    talk.refuse("a", "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    talk.commit("a")

    assert ["b@2"] == talk.offer("b")
    assert 0 == talk.session.epoch_bumps


def test_what_is_behind_a_batch_that_is_certainly_not_stored_is_not_stored_either() -> None:
    """The leader accepts no sequence before its predecessor."""
    talk = streaming()
    talk.offer("a", "b")
    talk.refuse("a", "unavailable")
    assert ["a@1"] == talk.wait_for_pause()
    talk.refuse("a", "forgotten")

    assert ["open"] == talk.wait_for_pause()
    assert ["a@0"] == talk.identify(8, 0)
    assert ["b@1"] == talk.commit("a")


def test_what_is_behind_a_batch_of_which_a_copy_may_be_stored_is_unknown_as_well() -> None:
    talk = streaming()
    talk.offer("a", "b")
    talk.wait(5.1)  # no answer: a is sent again, as a probe
    talk.refuse("a", "forgotten")
    assert ["a@1"] == talk.wait_for_pause()
    talk.refuse("a", "forgotten")

    assert (Outcome.UNKNOWN, Outcome.UNKNOWN) == (talk.outcomes["a"], talk.outcomes["b"])


def test_copies_under_a_number_that_a_batch_no_longer_has_do_not_count() -> None:
    talk = streaming()
    talk.offer("a", "b")  # this copy of b is never answered
    talk.refuse("a", "unavailable")
    talk.wait_for_pause()
    talk.refuse("a", "forgotten")
    talk.wait_for_pause()
    talk.identify(8, 0)
    assert ["b@1"] == talk.commit("a")
    talk.refuse("b", "unavailable")
    assert ["b@1"] == talk.wait_for_pause()
    talk.refuse("b", "forgotten")

    assert ["open"] == talk.wait_for_pause(), "every copy under this number was refused"
    assert ["b@0"] == talk.identify(9, 0)
