"""The users of an embedded broker: their hashed passwords, and the rights that amqtt reads from mosquitto's file."""

import stat
import subprocess
from pathlib import Path

import pytest
from amqtt.contexts import Action

from controller.local.broker_access import BrokerAccess, hash_password, is_password
from controller.local.embedded import find_mosquitto
from controller.local.embedded_broker import covers, parse_acl
from shard.access.broker_rules import BrokerFormat, export
from shard.access.rules import AccessRules, Right, Role

ACL = export(
    AccessRules({"shop": (Right(Role.PRODUCER),), "sensor": (Right(Role.DEVICE, ("heat",)),)}),
    BrokerFormat.ACL_FILE,
    cluster="local",
    daemon_user="headgate",
)


def test_a_hash_belongs_to_one_password_and_shows_nothing_of_it() -> None:
    hashed = hash_password("secret")

    assert is_password("secret", hashed)
    assert not is_password("Secret", hashed)
    assert "secret" not in hashed
    assert hashed != hash_password("secret"), "each hash has a salt of its own"


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here; CI installs it")
def test_mosquitto_writes_the_same_format(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("shop:secret\n")
    subprocess.run(["mosquitto_passwd", "-U", str(tmp_path / "passwords")], check=True, timeout=60)
    user, hashed = (tmp_path / "passwords").read_text().strip().split(":")

    assert ("shop", True) == (user, is_password("secret", hashed))


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    access = BrokerAccess(tmp_path / "passwords", tmp_path / "access.acl")
    access.write({"shop": "secret"}, ACL)

    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in (access.password_file, access.acl_file)}
    assert "secret" not in access.password_file.read_text()


@pytest.mark.parametrize(
    ("right", "covered", "others"),
    [("a/b", "a/b", "a/c a a/b/c a/+ #"), ("a/+", "a/b a/+", "a/#"), ("a/#", "a/b/c a/+/# a", "b/# # +/b")],
)
def test_a_right_covers_what_matches_it_completely(right: str, covered: str, others: str) -> None:
    assert covered.split() == [topic for topic in f"{covered} {others}".split() if covers(right, topic)]


@pytest.mark.parametrize(
    ("user", "action", "topic", "allowed"),
    [
        ("shop", Action.PUBLISH, "headgate/local/shards/0/requests/shop/1", True),
        ("shop", Action.PUBLISH, "headgate/local/shards/0/requests/other/1", False),
        ("shop", Action.PUBLISH, "headgate/local/cluster", False),
        ("shop", Action.SUBSCRIBE, "headgate/local/clients/shop/1/replies", True),
        ("shop", Action.SUBSCRIBE, "headgate/local/clients/+/+/replies", False),
        ("shop", Action.RECEIVE, "headgate/local/shards/0/leader", True),
        ("shop", Action.RECEIVE, "headgate/local/clients/other/1/replies", False),
        ("sensor", Action.PUBLISH, "headgate/local/publish/heat/key", True),
        ("sensor", Action.RECEIVE, "headgate/local/publish/heat/key", False),
        ("headgate", Action.PUBLISH, "headgate/local/shards/0/device-sentinels/1", True),
        ("headgate", Action.RECEIVE, "headgate/local/shards/0/device-sentinels/1", True),
    ],
)
def test_amqtt_reads_the_rights_of_mosquitto(user: str, action: Action, topic: str, allowed: bool) -> None:
    assert allowed == parse_acl(ACL)[user].allow(topic, action)
