"""The leadership table: properties over all roles and events."""

import re

import pytest

from controller.leadership.policy.transitions import Action, Event, Leadership, Role, ShardLeaders

ENDS = [
    Event.NUMBER_TAKEN,
    Event.OUTCOME_UNKNOWN,
    Event.STORE_UNREACHABLE,
    Event.BROKER_UNREACHABLE,
    Event.LEDGER_UNREADABLE,
    Event.STOP_REQUESTED,
]


@pytest.mark.parametrize("event", ENDS)
def test_an_event_that_ends_a_term_stops_requests_first_and_releases_the_lock(event: Event) -> None:
    """Rules 2 and 4. Only an orderly stop commits what was accepted: after a taken number, nothing may be written."""
    after, actions = Leadership(Role.LEADING, holds_lock=True).on(event)

    assert after.role is not Role.LEADING
    assert actions[0] is (Action.HAND_OVER if event is Event.STOP_REQUESTED else Action.END_TERM)
    assert Action.WITHDRAW in actions
    assert not after.holds_lock


@pytest.mark.parametrize("event", [event for event in Event if event not in ENDS])
def test_no_other_event_ends_a_term(event: Event) -> None:
    """Rule 3: losing ZooKeeper or the lock does not end the term. Rule 6: nor does a request for a transfer."""
    after, actions = Leadership(Role.LEADING, holds_lock=True).on(event)

    assert after.role is Role.LEADING
    assert actions == ((Action.NOMINATE,) if event is Event.TRANSFER_REQUESTED else ())
    assert after.transferring == (event is Event.TRANSFER_REQUESTED)


TRANSFERRING = Leadership(Role.LEADING, holds_lock=True, transferring=True)


def test_a_ready_successor_gets_the_lock_after_the_accepted_requests_are_committed() -> None:
    """Rule 6."""
    after, actions = Leadership(Role.LEADING, holds_lock=True).on(Event.TRANSFER_REQUESTED)[0].on(Event.SUCCESSOR_READY)

    assert actions == (Action.HAND_OVER, Action.PASS_ON, Action.END_TERM, Action.CONTEND)
    assert after == PASSED_ON


PASSED_ON = Leadership(Role.FOLLOWING, transferring=True)


@pytest.mark.parametrize(
    "event", [Event.TERM_FOLLOWED, Event.TRANSFER_ABANDONED, Event.LOCK_ACQUIRED, Event.STOP_REQUESTED]
)
def test_a_transfer_ends_when_a_term_follows_or_can_no_longer_follow(event: Event) -> None:
    """Rule 6."""
    after, actions = PASSED_ON.on(event)

    assert not after.transferring
    assert actions == Leadership().on(event)[1] or actions[-1:] == (Action.FORGET,)
    assert (Action.PASS_OVER in actions) == (event is Event.TRANSFER_ABANDONED)


@pytest.mark.parametrize("event", [Event.NOMINATED, Event.CONTACT_LOST, Event.CONTACT_REGAINED, Event.SUCCESSOR_READY])
def test_a_transfer_continues_after_the_lock_was_passed_on(event: Event) -> None:
    assert PASSED_ON.on(event)[0].transferring


@pytest.mark.parametrize("event", [Event.TRANSFER_ABANDONED, Event.SUCCESSOR_LEFT])
def test_a_leader_continues_if_its_successor_is_not_ready_in_time_or_leaves(event: Event) -> None:
    """Rule 6. The answer of a successor that was given up has no effect."""
    after, actions = TRANSFERRING.on(event)

    assert actions == (Action.FORGET,)
    assert after == Leadership(Role.LEADING, holds_lock=True)
    assert after.on(Event.SUCCESSOR_READY) == (after, ())
    assert after.on(Event.SUCCESSOR_LEFT) == (after, ())
    assert after.on(Event.TRANSFER_ABANDONED) == (after, ())


@pytest.mark.parametrize("event", ENDS)
def test_a_term_also_ends_while_a_successor_prepares(event: Event) -> None:
    after, actions = TRANSFERRING.on(event)

    assert actions == Leadership(Role.LEADING, holds_lock=True).on(event)[1]
    assert not after.transferring


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.CATCHING_UP])
def test_only_a_written_term_chunk_makes_a_leader(role: Role) -> None:
    """Rule 1: the lock does not."""
    for event in Event:
        after, _ = Leadership(role).on(event)
        assert after.role is not Role.LEADING or role is Role.LEADING
    assert Leadership(Role.CATCHING_UP).on(Event.TERM_STARTED)[0].role is Role.LEADING


@pytest.mark.parametrize(
    ("role", "expected"), [(Role.CATCHING_UP, (Action.WITHDRAW,)), (Role.LEADING, (Action.END_TERM, Action.WITHDRAW))]
)
def test_a_daemon_that_cannot_read_the_ledger_contends_only_when_it_can_again(role: Role, expected: tuple[Action, ...]):
    """Rule 5. A leader looks at its old chunks only during its term."""
    failed, actions = Leadership(role, holds_lock=True).on(Event.LEDGER_UNREADABLE)

    assert (Role.FAILED, False, expected) == (failed.role, failed.holds_lock, actions)
    for event in Event:
        _, actions = failed.on(event)
        assert (Action.CONTEND in actions) == (event is Event.LEDGER_READABLE)
        assert Action.CATCH_UP not in actions
    assert failed.on(Event.LEDGER_READABLE)[0].role is Role.FOLLOWING


@pytest.mark.parametrize(
    ("holder", "newest_term", "role", "reason"),
    [
        pytest.param("b", "b", Role.FOLLOWING, None, id="another daemon leads"),
        pytest.param("a", "", Role.LEADING, None, id="this daemon leads"),
        pytest.param("b", "a", Role.LEADING, None, id="this daemon leads, and another one is entitled"),
        pytest.param(None, "b", Role.FOLLOWING, "no daemon is known", id="the term outlived its leader"),
        pytest.param("b", "c", Role.FOLLOWING, "daemon 'b' holds its lock", id="the leader died"),
        pytest.param("b", "", Role.FOLLOWING, "this daemon has read no term of it", id="the first term has not begun"),
        pytest.param("a", "a", Role.FOLLOWING, "this daemon has given its lock up", id="no other holder is known"),
        pytest.param("b", "", Role.FAILED, None, id="its ledger is unreadable here"),
        pytest.param("a", "a", Role.CATCHING_UP, "this daemon .* has begun no term", id="this daemon's last term"),
    ],
)
def test_a_shard_without_a_leader_has_a_reason(holder: str | None, newest_term: str, role: Role, reason: str | None):
    leaders = ShardLeaders("a")
    if holder is not None:
        leaders.lock_held(0, holder)

    found = leaders.without_leader([(role, newest_term)])

    assert list(found) == ([] if reason is None else [0])
    assert reason is None or re.search(reason, found[0])
    leader = {Role.LEADING: "a", Role.FAILED: holder}.get(role, newest_term)
    assert leaders.leader_of(0, role, newest_term) == (leader if reason is None else None)
