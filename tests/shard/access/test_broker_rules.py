"""The broker's configuration that is made from the access rules."""

import json

import pytest

from headgate.errors import ConfigError
from shard.access.broker_rules import BrokerFormat, export
from shard.access.rules import AccessRules, Right, Role

RULES = AccessRules(
    {
        "gateway": (Right(Role.DEVICE, ("telemetry", "alarms")),),
        "wide": (Right(Role.DEVICE),),
        "shop": (Right(Role.PRODUCER, ("orders",)),),
        "alice": (Right(Role.ADMINISTRATOR),),
        "team": (Right(Role.ADMINISTRATOR, ("team-*", "alarms")),),
    }
)


def test_the_acl_file_lets_users_speak_below_their_own_name_only() -> None:
    text = export(RULES, BrokerFormat.ACL_FILE, cluster="plant", daemon_user="headgate")
    sections = [section.strip().replace("topic ", "").splitlines() for section in text.split("\n\n")[1:]]
    made = {user.removeprefix("user "): rights for user, *rights in sections}

    client = ["read headgate/plant/cluster", "read headgate/plant/shards/+/leader", "read headgate/plant/shards/+/head"]
    own = [
        "write headgate/plant/shards/+/requests/{0}/+",
        "read headgate/plant/clients/{0}/+/replies",
        "write headgate/plant/clients/{0}/+/presence",
    ]

    chunks = "read headgate/plant/shards/+/chunk"

    def device(user: str, *topics: str) -> list[str]:
        writes = ("write headgate/plant/publish/{}/#", f"write headgate/plant/devices/{user}/publish/{{}}/#")
        return [
            f"read headgate/plant/devices/{user}/replies/#",
            *(line.format(topic) for topic in topics for line in writes),
        ]

    assert "readwrite headgate/plant/shards/+/head" in made["headgate"], "a replica gets the announcements"
    assert {**made, "headgate": []} == {
        "headgate": [],
        "gateway": device("gateway", "alarms", "telemetry"),
        "wide": device("wide", "+"),
        "shop": [*client, *(line.format("shop") for line in own)],
        "alice": [*client, *(line.format("alice") for line in own), chunks, *device("alice", "+")],
        "team": [*client, *(line.format("team") for line in own), chunks, *device("team", "alarms")],
    }
    assert "readwrite headgate/plant/shards/+/requests/+/+" in made["headgate"]


def test_dynamic_security_grants_the_same_and_denies_the_rest() -> None:
    made = json.loads(export(RULES, BrokerFormat.DYNAMIC_SECURITY, cluster="plant", daemon_user="headgate"))
    roles = {role["rolename"]: role["acls"] for role in made["roles"]}

    assert made["defaultACLAccess"] == {
        "publishClientSend": False,
        "publishClientReceive": False,
        "subscribe": False,
        "unsubscribe": True,
    }
    assert {client["username"]: client["roles"][0]["rolename"] for client in made["clients"]} == {
        user: f"headgate-{user}" for user in ("headgate", "gateway", "wide", "shop", "alice", "team")
    }
    assert {(acl["acltype"], acl["topic"]) for acl in roles["headgate-gateway"]} == {
        ("publishClientSend", "headgate/plant/publish/alarms/#"),
        ("publishClientSend", "headgate/plant/publish/telemetry/#"),
        ("publishClientSend", "headgate/plant/devices/gateway/publish/alarms/#"),
        ("publishClientSend", "headgate/plant/devices/gateway/publish/telemetry/#"),
        ("subscribePattern", "headgate/plant/devices/gateway/replies/#"),
        ("publishClientReceive", "headgate/plant/devices/gateway/replies/#"),
    }
    assert ("subscribePattern", "headgate/plant/clients/shop/+/replies") in {
        (acl["acltype"], acl["topic"]) for acl in roles["headgate-shop"]
    }


def test_the_daemons_user_is_not_a_client() -> None:
    with pytest.raises(ConfigError, match="user alice is the daemons' own"):
        export(RULES, BrokerFormat.ACL_FILE, cluster="plant", daemon_user="alice")
