"""The places of ZooKeeper servers in an ensemble; real ones run in tests/system/test_chaos.py."""

from itertools import count
from pathlib import Path

from controller.local.embedded import zookeeper_config
from controller.local.zookeeper_ensemble import ensemble


def test_every_member_knows_all_members_under_the_same_numbers() -> None:
    members = ensemble(3, count(7000).__next__)

    assert [1, 2, 3] == [member.number for member in members if member is not None]
    [settings] = {tuple(member.settings("[::1]").items()) for member in members if member is not None}
    assert {
        "server.1": "[::1]:7000:7001",
        "server.2": "[::1]:7002:7003",
        "server.3": "[::1]:7004:7005",
    } == {name: value for name, value in settings if name.startswith("server")}


def test_a_single_server_is_in_no_ensemble_and_reserves_no_port() -> None:
    assert [None] == ensemble(1, lambda: 1 // 0)
    assert "server.1" not in zookeeper_config(Path("/x"), 2181)


def test_the_configuration_of_a_member_contains_its_peers() -> None:
    member = ensemble(2, count(7000).__next__)[1]

    assert "server.2=127.0.0.1:7002:7003\n" in zookeeper_config(Path("/x"), 2181, member=member)
