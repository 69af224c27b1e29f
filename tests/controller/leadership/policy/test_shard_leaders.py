"""A shard has a leader if this daemon leads it, or if the holder of its lock started the newest term."""

import re

import pytest

from controller.leadership.policy.shard_leaders import ShardLeaders
from controller.leadership.policy.transitions import Role


@pytest.mark.parametrize(
    ("holder", "newest_term", "role", "reason"),
    [
        pytest.param("b", "b", Role.FOLLOWING, None, id="another daemon leads"),
        pytest.param("a", "", Role.LEADING, None, id="this daemon leads"),
        pytest.param("b", "a", Role.LEADING, None, id="this daemon leads, and another one is entitled"),
        pytest.param(None, "b", Role.FOLLOWING, "no daemon is known", id="the term outlived its leader"),
        pytest.param("b", "c", Role.FOLLOWING, "daemon 'b' holds its lock", id="the leader died"),
        pytest.param("b", "", Role.FOLLOWING, "this daemon has read no term of it", id="the first term has not begun"),
        pytest.param(
            "a", "a", Role.FOLLOWING, "this daemon has given its lock up", id="ZooKeeper has not said who has it"
        ),
        pytest.param("a", "", Role.FAILED, None, id="its ledger is unreadable here"),
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


@pytest.mark.parametrize(
    ("holder", "newest_term", "role", "leader"),
    [
        pytest.param("b", "b", Role.FOLLOWING, "b", id="another daemon leads"),
        pytest.param("a", "", Role.LEADING, "a", id="this daemon leads"),
        pytest.param("b", "c", Role.FOLLOWING, None, id="the leader died"),
        pytest.param("b", "", Role.FAILED, "b", id="its ledger is unreadable here"),
    ],
)
def test_the_leader_of_a_shard(holder: str, newest_term: str, role: Role, leader: str | None) -> None:
    leaders = ShardLeaders("a")
    leaders.lock_held(0, holder)

    assert leaders.leader_of(0, role, newest_term) == leader
