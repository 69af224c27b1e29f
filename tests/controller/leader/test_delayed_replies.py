"""Replies to users who have spent their rates wait, in order; others do not."""

import asyncio

import pytest

from controller.leader.outbox import MAX_DELAYED_REPLIES, DelayedReplies
from metrics import events
from tests.support.fakes.recording_observer import RecordingObserver

pytestmark = pytest.mark.looptime


class Replies:
    """Delayed replies, with the delay of each user, and what was sent when."""

    def __init__(self) -> None:
        self.delays: dict[str, float] = {}
        self.observer = RecordingObserver()
        self.delayed = DelayedReplies(3, lambda user: self.delays.get(user, 0.0), self.observer)
        self.sent: list[tuple[str, float]] = []

    def send(self, name: str, user: str = "shop") -> None:
        self.delayed.send(user, lambda: self.sent.append((name, asyncio.get_running_loop().time())))

    @property
    def waiting(self) -> int:
        return self.observer.of(events.DelayedRepliesChanged)[-1].replies


async def test_replies_of_one_user_keep_their_order_and_times_and_those_to_others_leave_at_once() -> None:
    replies = Replies()
    for number in range(5):
        replies.delays["shop"] = 0.1 * (number // 2 + 1)
        replies.send(str(number))
    replies.delays["shop"] = 0.0
    replies.send("last")
    replies.send("other", "billing")
    assert 6 == replies.waiting
    await asyncio.sleep(1)

    names = [name for name, _ in replies.sent]
    assert ["other", "0", "1", "2", "3", "4", "last"] == names
    assert [at for _, at in replies.sent] == pytest.approx([0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    assert 0 == replies.waiting
    assert 6 == len(replies.observer.of(events.ReplyDelayed))


async def test_a_closed_term_sends_nothing_more() -> None:
    replies = Replies()
    replies.delays["shop"] = 0.5
    replies.send("a")
    replies.delayed.close()
    await asyncio.sleep(1)

    assert [] == replies.sent
    assert 0 == replies.waiting


async def test_the_replies_that_wait_are_limited_per_user() -> None:
    replies = Replies()
    replies.delays["shop"] = 1.0
    for number in range(MAX_DELAYED_REPLIES):
        assert not replies.delayed.full("shop")
        replies.send(str(number))

    assert replies.delayed.full("shop")
    assert not replies.delayed.full("billing")
    replies.delayed.close()
