"""The batches of a producer session: replies that are expected, what is counted, other numbers, and how batches grow."""

import pytest

from headgate.client.decisions.session_batches import BatchGrowth, Outcome, RoundTrip
from tests.support.worlds.session_dialogue import Dialogue, led, streaming


def closed(talk: Dialogue) -> None:
    talk._record(talk.session.abandon("closed"))


def fenced(talk: Dialogue) -> None:
    talk.refuse("a", "fenced")


def decided(talk: Dialogue) -> None:
    talk.refuse("b", "invalid")
    talk.identify(7, 1, reached=2)


def proven(talk: Dialogue) -> None:
    talk.commit("b")
    talk.connect(False)


def expired(talk: Dialogue) -> None:
    talk.wait(106)


@pytest.mark.parametrize("end", [closed, fenced, decided, proven, expired])
def test_no_reply_about_a_resolved_batch_is_expected_and_a_late_one_changes_nothing(end) -> None:
    talk = streaming()
    assert set() == talk.awaited
    talk.offer("a", "b")
    end(talk)

    assert set() == talk.awaited
    assert 0 == talk.unresolved
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
    assert 0 == talk.unresolved


def test_batches_in_flight_proven_and_queued_are_unresolved() -> None:
    talk = streaming(max_in_flight=2)
    talk.offer(*"abcde")
    assert 5 == talk.unresolved
    talk.commit("b")
    assert 4 == talk.unresolved, "a is proven, c and d are in flight, e is queued"
    talk.commit("a")
    assert 3 == talk.unresolved


def test_a_proven_batch_is_reported_at_the_first_deadline_of_its_records() -> None:
    talk = streaming()
    talk.offer_until("a", 0.05, 20)
    talk.offer("b")
    talk.commit("b")
    talk.wait(0.06)

    assert (Outcome.COMMITTED, None) == (talk.outcomes["a"], talk.replies["a"])
    assert 0 == talk.unresolved


def test_an_opening_decides_every_batch_in_flight() -> None:
    """x was refused, and a late copy of it was stored; y was refused; the epoch is closed, so c can have another number."""
    talk = streaming("a", "x")
    talk.refuse("x", "forbidden")
    assert (Outcome.COMMITTED, Outcome.COMMITTED) == (
        talk.identify(7, 1, reached=3) or talk.outcomes["a"],
        talk.outcomes["x"],
    )
    talk.offer("y", "b", "c")
    talk.refuse("y", "invalid")
    assert "y" not in talk.outcomes, "a late copy may still be stored"
    assert ["b@0"] == talk.identify(7, 2, reached=0)
    assert Outcome.INVALID is talk.outcomes["y"]
    assert "refused by the test" == talk.reasons["y"]
    assert ["c@1"] == talk.commit("b")


# What cannot be answered in time


def measured(seconds: float, **settings) -> Dialogue:
    """Return a session whose every answer took ``seconds``."""
    talk = led(**settings)
    talk.offer("0")
    talk.wait(seconds)
    talk.identify()
    talk.wait(seconds)
    talk.commit("0")
    return talk


@pytest.mark.parametrize(("left_seconds", "sent"), [(0.59, ["b@1"]), (0.61, ["a@1"])])
def test_a_batch_that_has_less_than_two_round_trips_left_is_not_sent(left_seconds, sent) -> None:
    """The next one is sent in its stead, and there is no gap."""
    talk = measured(0.3)
    talk.connect(False)
    talk.offer_until("a", talk.now + 10)
    talk.offer_until("b", talk.now + 20)
    talk.wait(10 - left_seconds)
    assert sent == talk.connect()
    assert talk.outcomes.get("a") is (Outcome.FAILED if sent == ["b@1"] else None)


def test_a_fresh_batch_is_sent_although_answers_take_longer_than_it_lives() -> None:
    """Otherwise nothing would measure the round trip again."""
    talk = measured(4.0)
    assert ["a@1"] == talk.offer_until("a", talk.now + 5)


def test_records_that_cannot_be_answered_in_time_leave_their_batch() -> None:
    talk = measured(0.3, max_in_flight=1)
    talk.offer("a")
    due = talk.now + 0.5
    talk.offer_until("b", due, due + 10)
    assert ["b@2"] == talk.commit("a")
    assert [("b", due, Outcome.FAILED)] == talk.expired


def test_the_round_trip_is_smoothed_and_counts_only_answers_to_the_present_attempt() -> None:
    assert 0.2 == RoundTrip().measured(0.2).seconds
    assert 0.3 == pytest.approx(RoundTrip(0.2).measured(1.0).seconds)
    talk = measured(0.2)
    talk.offer("a")
    late = talk.last["a"]
    talk.wait(5.1)
    talk.commit(late)
    talk.offer_until("b", talk.now + 0.41)
    assert "b" in talk.last, "0.4 s are two round trips"


@pytest.mark.parametrize(
    ("accepted_bytes", "unanswered_bytes", "full_bytes", "leaves_after_bytes"),
    [
        (10_000, 0, 100, 0),
        (10_000, 403, 100, 0),
        (10_000, 404, 101, 101),
        (10_000, 1_000_000, 1600, 1600),
        (150, 1_000_000, 150, 150),
        (50, 1_000_000, 50, 0),
    ],
    ids=["idle", "little", "a quarter", "sixteen times", "as the broker accepts", "less than is wanted"],
)
def test_a_batch_gets_a_quarter_of_what_is_unanswered(accepted_bytes, unanswered_bytes, full_bytes, leaves_after_bytes):
    growth = BatchGrowth(100)
    growth.limit(accepted_bytes)
    growth.offered_bytes, growth.answered_bytes = 7000 + unanswered_bytes, 7000

    assert full_bytes == growth.full_bytes()
    assert (7000 + leaves_after_bytes if leaves_after_bytes else 0) == growth.leaves_at(full_bytes)
