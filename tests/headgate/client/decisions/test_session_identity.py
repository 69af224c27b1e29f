"""When a producer session requests an identity, and which replies count."""

from headgate.client.decisions.producer_session import Phase
from headgate.client.decisions.session_batches import Outcome
from headgate.protocol.replies import ProducerIdentity
from tests.support.worlds.session_dialogue import led, streaming


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
