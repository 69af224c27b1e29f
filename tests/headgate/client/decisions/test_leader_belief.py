"""A client believes replies, not announcements; and when a leader must refuse a command, by the clock of its term."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.decisions.leader_belief import CommandDeadline, LeaderBelief, Question
from headgate.protocol.codec import LeaderAnnouncement

FORGED = 2**31 - 1


def leader(epoch: int, *, window: int = 64) -> LeaderAnnouncement:
    return LeaderAnnouncement(shard=0, leader_epoch=epoch, instance=f"node-{epoch}", window=window)


def believing(epoch: int, now: float = 0.0) -> LeaderBelief:
    belief = LeaderBelief()
    belief.prompt(now)
    assert belief.answered(belief.ask(now, 1.0), leader(epoch))
    assert belief.ask_at is None
    return belief


@pytest.mark.parametrize("announced", [leader(FORGED), leader(6), leader(4), leader(5, window=1)], ids=repr)
def test_an_announcement_is_asked_about_and_not_believed(announced: LeaderAnnouncement) -> None:
    belief = believing(5)

    assert not belief.announced(announced, 100.0)
    assert (belief.leader, belief.ask_at) == (leader(5), 100.0)
    assert belief.ask(100.0, 1.0).heard_epoch == max(5, announced.leader_epoch)


def test_the_announcement_of_the_believed_leader_is_no_reason_to_ask() -> None:
    belief = believing(5)

    assert belief.announced(leader(5), 100.0)
    assert belief.ask_at is None


def test_a_successor_is_believed_with_its_first_reply() -> None:
    belief = believing(5)
    belief.announced(leader(6), 100.0)

    assert belief.answered(belief.ask(100.0, 1.0), leader(6))
    assert (belief.leader, belief.ask_at) == (leader(6), None)


def test_a_leader_that_has_proved_itself_ends_the_question_about_a_forged_one() -> None:
    belief = believing(5)
    belief.announced(leader(FORGED), 100.0)

    assert not belief.answered(belief.ask(100.0, 1.0), leader(5)), "it is believed already"
    assert (belief.leader, belief.ask_at) == (leader(5), None)
    belief.announced(leader(6), 200.0)
    assert belief.ask(200.0, 1.0).heard_epoch == 6, "what was forged is not named again"


def test_a_false_belief_ends_with_the_reply_of_a_lower_epoch() -> None:
    belief = believing(FORGED)
    belief.prompt(100.0)
    question = belief.ask(100.0, 1.0)

    assert question.heard_epoch == FORGED, "a lower leader replies after a barrier"
    assert belief.answered(question, leader(5))
    assert belief.leader == leader(5)


def test_a_late_reply_of_a_predecessor_changes_nothing() -> None:
    """It proved itself when it was asked; another term has begun since."""
    belief = believing(5)
    belief.announced(leader(FORGED), 100.0)
    early = belief.ask(100.0, 1.0)
    belief.announced(leader(6), 101.0)
    assert belief.answered(belief.ask(101.0, 1.0), leader(6))

    assert not belief.answered(early, leader(5))
    assert belief.leader == leader(6)


def test_of_two_replies_to_one_question_the_later_term_counts_in_either_order() -> None:
    """A deposed leader that does not know it yet replies as well."""
    for replies in ([5, 6], [6, 5]):
        belief = LeaderBelief()
        belief.prompt(0.0)
        question = belief.ask(0.0, 1.0)
        for epoch in replies:
            belief.answered(question, leader(epoch))
        assert belief.leader == leader(6)


def test_a_question_is_repeated_until_it_is_answered() -> None:
    belief, now, pauses = LeaderBelief(), 0.0, []
    belief.prompt(now)
    for _ in range(8):
        belief.ask(now, 1.0)
        pauses.append(round(belief.ask_at - now, 3))
        now = belief.ask_at

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    belief.announced(leader(1), now)
    assert belief.ask_at == now, "a leader that announces itself does not wait"


def test_a_flood_of_announcements_costs_one_question_a_second() -> None:
    belief, asked, now = believing(5), [], 100.0
    while now < 160:
        belief.announced(leader(FORGED), now)
        if belief.ask_at is not None and now >= belief.ask_at:
            asked.append(now)
            belief.answered(belief.ask(now, 1.0), leader(5))
        now += 0.01

    assert len(asked) <= 70
    belief.answered(belief.ask(now, 1.0), leader(5))
    calm = now + 11
    belief.announced(leader(6), calm)
    assert belief.ask_at == calm


def test_questions_in_a_row_wait_longer_and_longer_up_to_a_second() -> None:
    belief, now, pauses = believing(5, now=100.0), 100.0, []
    for _ in range(8):
        belief.prompt(now)
        pauses.append(round(belief.ask_at - now, 3))
        now = belief.ask_at
        belief.answered(belief.ask(now, 1.0), leader(5))

    assert pauses == [0.0, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


@pytest.mark.parametrize(("quiet_seconds", "pause_seconds"), [(10.0, 1.0), (10.1, 0.025)])
def test_after_ten_seconds_without_a_question_the_pauses_begin_again(quiet_seconds: float, pause_seconds: float):
    belief, now = believing(5), 0.0
    for _ in range(8):
        belief.prompt(now)
        assert belief.ask_at is not None
        now = belief.ask_at
        belief.answered(belief.ask(now, 1.0), leader(5))
    now += quiet_seconds
    belief.prompt(now)
    belief.answered(belief.ask(now, 1.0), leader(5))
    belief.prompt(now)

    assert belief.ask_at == pytest.approx(now + pause_seconds)


class Cluster:
    """Terms that begin one after the other; each leader replies as docs/protocol.md says."""

    def __init__(self) -> None:
        self.newest = 1
        self.replies: list[tuple[Question, int]] = []

    def ask(self, question: Question) -> None:
        """Let every leader reply: the newest one, and deposed ones that do not know it."""
        for epoch in range(1, self.newest + 1):
            if epoch == self.newest or question.heard_epoch <= epoch:  # a deposed one cannot create a chunk
                self.replies.append((question, epoch))


@given(st.lists(st.tuples(st.sampled_from(["term", "forge", "ask", "reply", "lose", "doubt"]), st.integers(0, 9))))
def test_a_belief_never_returns_to_an_earlier_term_and_reaches_the_newest_one(steps: list[tuple[str, int]]) -> None:
    cluster, belief, now, newest_believed = Cluster(), LeaderBelief(), 0.0, 0
    belief.prompt(now)
    for step, number in steps:
        now += 0.3
        match step:
            case "term":
                cluster.newest += 1
                belief.announced(leader(cluster.newest), now)
            case "forge":
                belief.announced(leader([FORGED, cluster.newest + 1, max(1, cluster.newest - 1)][number % 3]), now)
            case "doubt":
                belief.prompt(now)
            case "ask" if belief.ask_at is not None and now >= belief.ask_at:
                cluster.ask(belief.ask(now, 1.0))
            case "reply" | "lose" if cluster.replies:
                question, epoch = cluster.replies.pop(number % len(cluster.replies))
                if step == "reply":
                    belief.answered(question, leader(epoch))
        believed = 0 if belief.leader is None else belief.leader.leader_epoch
        assert newest_believed <= believed <= cluster.newest
        newest_believed = believed
    belief.announced(leader(cluster.newest), now)
    for _ in range(3):
        if belief.ask_at is not None:
            now = max(now, belief.ask_at)
            cluster.replies.clear()
            cluster.ask(belief.ask(now, 1.0))
            for question, epoch in cluster.replies:
                belief.answered(question, leader(epoch))
    assert belief.leader == leader(cluster.newest)
    assert belief.ask_at is None


def test_another_reply_of_the_believed_term_is_believed_whatever_was_believed_when_it_was_asked() -> None:
    belief = believing(5)
    belief.announced(leader(6), 100.0)
    question = belief.ask(100.0, 1.0)
    belief.answered(question, leader(6))

    assert belief.answered(question, leader(6, window=1))
    assert belief.leader == leader(6, window=1)


seconds = st.floats(0, 1000)


def test_the_first_attempt_in_a_term_asks_for_its_age() -> None:
    limit = CommandDeadline(deadline=10.0)
    assert limit.learn(7, 60_000, now=4.0)

    assert [0, 66_000, 0] == [limit.max_term_age_ms(epoch) for epoch in (6, 7, 8)]


@given(began=seconds, timeout=seconds, request_takes=seconds, reply_takes=seconds)
def test_the_leader_refuses_no_later_than_the_client_gives_up(
    began: float, timeout: float, request_takes: float, reply_takes: float
) -> None:
    """``began``: how long the term lasts when the client begins, by any clock of the same speed."""
    limit = CommandDeadline(deadline=timeout)
    limit.learn(1, int((began + request_takes) * 1000), now=request_takes + reply_takes)

    given_up_at_age_ms = (began + max(timeout, request_takes)) * 1000
    assert limit.max_term_age_ms(1) <= given_up_at_age_ms + 0.001


def test_a_later_refusal_in_the_same_term_changes_nothing() -> None:
    limit = CommandDeadline(deadline=10.0)
    limit.learn(7, 1000, now=1.0)

    assert not limit.learn(7, 5000, now=1.0)
    assert 10_000 == limit.max_term_age_ms(7)


def test_a_command_can_be_executed_once_an_attempt_had_a_limit_that_is_ahead() -> None:
    limit = CommandDeadline(deadline=10.0)
    limit.sent(7)
    assert not limit.may_be_executed
    limit.learn(7, 1000, now=1.0)
    limit.sent(7)
    assert limit.may_be_executed


def test_after_the_deadline_the_limit_is_the_age_of_the_term() -> None:
    limit = CommandDeadline(deadline=10.0)
    limit.learn(7, 1000, now=12.0)

    assert 1000 == limit.max_term_age_ms(7)
