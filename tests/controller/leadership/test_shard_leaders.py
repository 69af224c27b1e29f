"""A shard has a leader if this daemon leads it, or if the holder of its lock announced itself last."""

from __future__ import annotations

import re

import pytest

from controller.leadership.shard_leaders import ShardLeaders
from controller.leadership.transitions import Role


@pytest.mark.parametrize(
    ("holder", "announced", "role", "reason"),
    [
        pytest.param("b", [(3, "b")], Role.FOLLOWING, None, id="another daemon leads"),
        pytest.param("a", [], Role.LEADING, None, id="this daemon leads"),
        pytest.param("b", [(3, "a")], Role.LEADING, None, id="this daemon leads, and another one is entitled"),
        pytest.param(None, [(3, "b")], Role.FOLLOWING, "no daemon is known", id="an announcement is retained"),
        pytest.param("b", [(3, "c")], Role.FOLLOWING, "daemon 'b' holds its lock", id="the leader died"),
        pytest.param("b", [], Role.FOLLOWING, "daemon 'b' holds its lock", id="the first term has not begun"),
        pytest.param("b", [(3, "c"), (2, "b")], Role.FOLLOWING, "daemon 'b' holds its lock", id="a late announcement"),
        pytest.param("a", [], Role.FAILED, None, id="its ledger is unreadable here"),
        pytest.param("a", [(3, "a")], Role.CATCHING_UP, "this daemon .* is catching up", id="this daemon's last term"),
    ],
)
def test_a_shard_without_a_leader_has_a_reason(
    holder: str | None, announced: list[tuple[int, str]], role: Role, reason: str | None
) -> None:
    leaders = ShardLeaders("a", 1)
    if holder is not None:
        leaders.lock_held(0, holder)
    for leader_epoch, instance in announced:
        leaders.announced(0, leader_epoch, instance)

    found = leaders.without_leader([role])

    assert list(found) == ([] if reason is None else [0])
    assert reason is None or re.search(reason, found[0])


def test_announcements_of_unknown_shards_take_no_memory() -> None:
    leaders = ShardLeaders("a", 2)
    for shard in (-1, 2, 2**62):
        leaders.announced(shard, 1, "x")

    assert leaders._announced == {}
