"""The producer session: deadlines, gaps, epoch bumps, and verdicts that end something."""

import re

import pytest

from headgate.client.decisions.session_batches import Outcome
from tests.support.worlds.session_dialogue import Dialogue, led, streaming

# Deadlines, gaps and epoch bumps


def test_expiry_in_flight_is_unknown_and_numbering_restarts_under_the_next_epoch():
    """KIP-91 rule 22: also after the first send, without any reply."""
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


@pytest.mark.parametrize("refused", [None, "unavailable", "invalid"])
def test_at_its_deadline_a_batch_that_was_sent_is_unknown_and_one_that_was_not_is_not_stored(refused):
    """A refusal covers one copy; a broker may have doubled the batch. No opening has decided one that is for good."""
    talk = streaming(max_in_flight=1, deadline=10)
    talk.offer("a", "b")
    if refused:
        talk.refuse("a", refused)
    talk.connect(False)
    talk.wait(10)
    assert (Outcome.UNKNOWN, Outcome.FAILED) == (talk.outcomes["a"], talk.outcomes["b"])


def test_the_records_of_a_batch_expire_at_their_own_deadlines():
    """The others are committed, and there is no gap."""
    talk = streaming()
    talk.offer_until("a", 5, 6, 20)
    talk.connect(False)
    talk.wait(4.9)
    assert [] == talk.expired
    talk.wait(1.2)
    assert [("a", 5, Outcome.UNKNOWN), ("a", 6, Outcome.UNKNOWN)] == talk.expired
    assert ["a@1"] == talk.connect()
    assert ["b@2"] == (talk.commit("a") or talk.offer("b"))
    assert Outcome.COMMITTED is talk.outcomes["a"]


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        ("no connection", "sent; shard 0: it has no leader"),
        ("no leader", "never sent; shard 0: it has no leader"),
        ("refused", "sent; the leader refuses batches \\(unavailable: refused by the test\\)"),
        ("never sent", "never sent; shard 0: it has no leader"),
    ],
)
def test_the_outcome_at_a_deadline_says_what_happened(obstacle, reason):
    talk = Dialogue(deadline=10) if obstacle == "no leader" else streaming(deadline=10)
    talk.connect(obstacle != "never sent")
    talk.offer("a")
    match obstacle:
        case "no connection":
            talk.connect(False)
        case "refused":
            talk.refuse("a", "unavailable")
    talk.wait(10)
    assert re.search(f"^the delivery timeout has passed: it was {reason}$", talk.reasons["a"])


def test_a_commit_proves_an_expired_batch_and_closes_its_gap():
    talk = streaming()
    talk.offer_until("a", 2)
    talk.offer_until("b", 20)
    talk.wait(2)
    assert Outcome.UNKNOWN is talk.outcomes["a"]
    assert ["c@3"] == talk.offer("c"), "if a is lost, the leader refuses c"
    assert [] == talk.commit("b")
    assert 0 == talk.session.epoch_bumps


@pytest.mark.parametrize("end", ["a refusal", "no answer in time", "a disconnection", "another leader"])
def test_a_batch_that_expired_in_flight_is_not_sent_again_after_its_attempt(end):
    """An opening says what became of it, and of the batch behind it."""
    talk = streaming()
    talk.offer_until("a", 3)
    talk.offer_until("b", 20)
    talk.wait(4)
    assert Outcome.UNKNOWN is talk.outcomes["a"]
    match end:
        case "a refusal":
            assert ["open"] == talk.refuse("b", "out_of_order") + talk.wait_for_pause()
        case "no answer in time":
            assert ["open"] == talk.wait(1.1)
        case "a disconnection":
            assert ["open"] == talk.connect(False) + talk.connect()
        case "another leader":
            assert ["open"] == talk.leader(2)
    assert ["b@0"] == talk.identify(7, 1, reached=1)


def test_the_answer_to_an_expired_probe_opens_the_window():
    """After an outage each batch expires before the answer to the one before it: giving up that one ends nowhere."""
    talk = led()
    talk.offer_until("a", 0.5)
    talk.identify()
    talk.offer_until("b", 20)
    talk.offer_until("c", 20)
    talk.wait(0.6)
    assert Outcome.UNKNOWN is talk.outcomes["a"]
    assert ["b@1", "c@2"] == talk.commit("a")
    assert 0 == talk.session.epoch_bumps


@pytest.mark.parametrize(("noticed", "within_seconds"), [(True, 0.65), (False, 5.0 + 1.0 + 0.65)])
def test_a_producer_recovers_from_an_outage_that_outlasts_its_delivery_timeout(noticed, within_seconds):
    """8 batches a second at a round trip of 0.3 s: whichever is the head of the queue has less than that to live.

    An opening and a batch take two round trips. If the connection seems to last, a request has to time out first.
    """
    talk, answers, commits = Dialogue(deadline=10.0), [], []
    begins, ends, round_trip = 5.0, 20.0, 0.3

    def travel(sent: list[str]) -> None:
        if not begins <= talk.now < ends:
            answers.extend((talk.now + round_trip, talk.last.get(name.split("@")[0])) for name in sent)

    talk.leader()
    talk.connect()
    for step in range(40 * 80):
        travel(talk.wait(1 / 80))
        if noticed and step in (begins * 80, ends * 80):
            travel(talk.connect(step == ends * 80))
        if step % 10 == 0:
            travel(talk.offer(f"r{step}"))
        while answers and answers[0][0] <= talk.now:
            _, batch = answers.pop(0)
            if batch is None:
                travel(talk.identify(7, talk.session.epoch_bumps, reached=len(commits)))
            elif batch.request_id in talk.awaited:
                commits.append(talk.now)
                travel(talk.commit(batch))

    assert ends <= next(at for at in commits if at > ends) <= ends + within_seconds
    assert talk.session.epoch_bumps <= 2


def test_an_expired_batch_that_no_other_follows_ends_its_epoch_when_its_answer_is_overdue():
    talk = streaming(deadline=3)
    talk.offer("a")
    assert [] == talk.wait(60)
    assert 0 == talk.session.in_flight
    assert ["open"] == talk.offer("b")
    assert ["b@0"] == talk.identify(7, 1, reached=1)


# Verdicts that end something


def test_fenced_resolves_every_batch_and_renumbers_none():
    talk = streaming("a", "b")
    assert [] == talk.refuse("a", "fenced")
    assert (Outcome.FENCED, Outcome.FENCED) == (talk.outcomes["a"], talk.outcomes["b"])
    assert [] == talk.offer("c")
    assert Outcome.FENCED is talk.outcomes["c"]
    assert [] == talk.wait(60)


def test_fenced_while_opening_rejects_the_identity():
    talk = led()
    talk.offer("a")
    assert ["open rejected: fenced"] == talk.refuse(talk.opening, "fenced")
    assert Outcome.FENCED is talk.outcomes["a"]


@pytest.mark.parametrize("sent", ["ab", "a"], ids=["behind the head", "for a head that is no probe"])
def test_out_of_order_bumps_no_epoch(sent):
    """librdkafka 4953: a bump for what is behind the head duplicated another partition."""
    talk = streaming(*sent)
    talk.refuse(sent[-1], "out_of_order")
    assert ["a@1"] == talk.wait_for_pause()
    talk.commit("a")
    assert 0 == talk.session.epoch_bumps


def test_a_probe_out_of_order_is_decided_by_an_opening():
    talk = streaming("a", "b")
    talk.refuse("a", "unavailable")
    talk.wait_for_pause()
    talk.refuse("a", "out_of_order")
    assert ["open"] == talk.wait_for_pause()
    assert ["a@0"] == talk.identify(7, 1, reached=0)
    assert ["b@1"] == talk.commit("a")


@pytest.mark.parametrize("refused", ["a", "b"])
def test_what_was_sent_is_unknown_after_the_producer_was_forgotten_and_the_rest_is_sent(refused):
    """Another copy may be stored, whatever became of this one: under another identity it would be stored twice."""
    talk = streaming(max_in_flight=2)
    talk.offer("a", "b", "c")
    talk.refuse(refused, "forgotten")
    assert ["open"] == talk.wait_for_pause()
    assert ["c@0"] == talk.identify(8, 0)
    assert (Outcome.UNKNOWN, Outcome.UNKNOWN) == (talk.outcomes["a"], talk.outcomes["b"])


def test_a_named_producer_that_was_deleted_ends():
    """Another identity would not continue at the source position of this one."""
    talk = streaming(named=True)
    talk.offer("a", "b")
    assert [] == talk.refuse("b", "forgotten")
    talk.offer("c")
    talk.wait(60)
    assert [Outcome.FORGOTTEN] * 3 == [talk.outcomes[name] for name in "abc"]
    assert (Outcome.FORGOTTEN, "refused by the test") == talk.session.end


def test_a_named_producer_that_was_deleted_gets_no_next_epoch():
    talk = streaming(named=True)
    talk.offer("a")
    talk.refuse("a", "invalid")
    talk.offer("b")
    assert ["open rejected: forgotten"] == talk.refuse(talk.opening, "forgotten")
    assert Outcome.FORGOTTEN is talk.outcomes["b"]


@pytest.mark.parametrize("verdict", ["invalid", "forbidden", "quota_exceeded"])
def test_a_batch_refused_for_good_fails_alone_once_the_epoch_is_closed(verdict):
    """A late copy of it, or of those behind it, may be stored until then: the topic or the right may exist again."""
    talk = streaming("a", "bad", "c")
    assert ["open"] == talk.refuse("bad", verdict)
    assert {"0"} == set(talk.outcomes)
    assert [] == talk.offer("d"), "nothing is numbered before the opening"
    assert ["c@0"] == talk.identify(7, 1, reached=2)
    assert {"0": Outcome.COMMITTED, "a": Outcome.COMMITTED, "bad": Outcome.INVALID} == talk.outcomes
    assert ["d@1"] == talk.commit("c")


def test_a_commit_that_arrives_during_the_opening_has_offsets():
    talk = streaming("a", "bad")
    talk.refuse("bad", "invalid")
    talk.commit("a")
    assert talk.replies["a"] is not None
    talk.identify(7, 1, reached=2)
    assert Outcome.INVALID is talk.outcomes["bad"]


def test_invalid_for_a_batch_that_is_known_to_be_stored_is_a_commit():
    """Its reply was lost, and its topic was deleted afterwards."""
    talk = streaming("a", "b")
    talk.commit("b")
    talk.refuse("a", "invalid")
    assert (Outcome.COMMITTED, Outcome.COMMITTED) == (talk.outcomes["a"], talk.outcomes["b"])


def test_an_identity_that_is_refused_for_good_fails_the_queue():
    talk = led()
    talk.offer("a")
    assert ["open rejected: invalid"] == talk.refuse(talk.opening, "invalid")
    assert Outcome.INVALID is talk.outcomes["a"]
    assert ["open"] == talk.offer("b")


def test_closing_reports_sent_batches_as_unknown_and_the_others_as_failed():
    talk = streaming(max_in_flight=1)
    talk.offer("a", "b")
    talk._record(talk.session.abandon("closed"))
    assert (Outcome.UNKNOWN, Outcome.FAILED) == (talk.outcomes["a"], talk.outcomes["b"])
