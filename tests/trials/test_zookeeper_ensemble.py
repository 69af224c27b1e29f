"""ZooKeeper servers of an ensemble before they start; real ones run in tests/system/test_chaos.py."""

from itertools import count
from pathlib import Path

from trials.zookeeper_ensemble import ensemble, ensemble_settings


def test_every_member_knows_all_members_under_the_same_numbers() -> None:
    members = ensemble(Path("/x"), 3, count(7000).__next__)

    assert [1, 2, 3] == [member.number for member in members]
    assert [7006, 7007, 7008] == [member.port for member in members]
    assert "server.2=127.0.0.1:7002:7003\n" in ensemble_settings([(7000, 7001), (7002, 7003), (7004, 7005)])
