"""mosquitto enforces the exported rules in both formats, for users with certificates and with passwords."""

import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from headgate.errors import TransportError
from headgate.transport.mqtt import MqttTransport
from shard.access.broker_rules import BrokerFormat, export
from shard.access.rules import AccessRules, Right, Role
from tests.support.servers.tls_broker import TlsBroker
from tests.support.waiting import until

pytestmark = pytest.mark.contract

PLUGIN: Final = Path("/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so")
DAEMON, SPY = "headgate", "spy"
RULES: Final = AccessRules(
    {
        "till": (Right(Role.PRODUCER, ("orders",)),),
        "billing": (Right(Role.CONSUMER, ("orders",), ("billing",)),),
        "gateway": (Right(Role.DEVICE, ("orders",)),),
        "operator": (Right(Role.ADMINISTRATOR),),
    }
)
USERS: Final = (DAEMON, *RULES.users)

ANNOUNCED = {"c/cluster", "c/shards/0/leader", "c/shards/0/head"}
CHUNK = "c/shards/0/chunk"
REQUESTS = {f"c/shards/0/requests/{user}/1" for user in USERS}
REPLIES = {f"c/clients/{user}/1/replies" for user in USERS}
PRESENCE = {f"c/clients/{user}/1/presence" for user in USERS}
DEVICES = {"c/publish/orders/key", "c/publish/orders", "c/publish/other/key"}
OWN_DEVICES = {f"c/devices/{user}/publish/orders/key" for user in USERS}
CONFIRMATIONS = {f"c/devices/{user}/replies/1" for user in USERS}
FOREIGN = {"c/shards/0/device-sentinels/1", "c/shards/0/other", "d/cluster", "d/shards/0/leader", "other"}
TOPICS: Final = ANNOUNCED | {CHUNK} | REQUESTS | REPLIES | PRESENCE | DEVICES | OWN_DEVICES | CONFIRMATIONS | FOREIGN

RECEIVES: Final = {
    DAEMON: ANNOUNCED | {"c/shards/0/device-sentinels/1"} | REQUESTS | REPLIES | PRESENCE | DEVICES | OWN_DEVICES,
    "till": ANNOUNCED | {"c/clients/till/1/replies"},
    "billing": ANNOUNCED | {CHUNK, "c/clients/billing/1/replies"},
    "gateway": {"c/devices/gateway/replies/1"},
    "operator": ANNOUNCED | {CHUNK, "c/clients/operator/1/replies", "c/devices/operator/replies/1"},
}
SENDS: Final = {
    DAEMON: ANNOUNCED | REQUESTS | REPLIES | PRESENCE | CONFIRMATIONS | {CHUNK, "c/shards/0/device-sentinels/1"},
    "till": {"c/shards/0/requests/till/1", "c/clients/till/1/presence"},
    "billing": {"c/shards/0/requests/billing/1", "c/clients/billing/1/presence"},
    "gateway": {"c/publish/orders/key", "c/publish/orders", "c/devices/gateway/publish/orders/key"},
    "operator": {"c/shards/0/requests/operator/1", "c/clients/operator/1/presence"}
    | {"c/devices/operator/publish/orders/key"}
    | DEVICES,
}

Connect = Callable[[str], Awaitable[MqttTransport]]


def topic(short: str) -> str:
    return f"headgate/{short}"


def exported(broker_format: BrokerFormat) -> str:
    return export(RULES, broker_format, cluster="c", daemon_user=DAEMON)


def with_acl_file(broker: TlsBroker, _: bool) -> None:
    file = broker.folder / "access.acl"
    file.write_text(f"{exported(BrokerFormat.ACL_FILE)}\nuser {SPY}\ntopic readwrite #\n")
    file.chmod(0o600)
    broker.settings["acl_file"] = file


def with_dynamic_security(broker: TlsBroker, passwords: bool) -> None:
    """Load the plugin; ``passwords``: add them as `mosquitto_ctrl` does."""
    if not PLUGIN.exists():
        pytest.skip("mosquitto's plugin for dynamic security is missing; Debian's package mosquitto contains it")
    document = json.loads(exported(BrokerFormat.DYNAMIC_SECURITY))
    kinds = ("subscribePattern", "publishClientSend", "publishClientReceive")
    acls = [{"acltype": kind, "topic": "#", "priority": 0, "allow": True} for kind in kinds]
    document["roles"].append({"rolename": SPY, "acls": acls})
    document["clients"].append({"username": SPY, "roles": [{"rolename": SPY}]})
    for client in document["clients"] if passwords else []:
        salt, iterations = b"0123456789ab", 101
        digest = hashlib.pbkdf2_hmac("sha512", client["username"].encode(), salt, iterations)
        client |= {
            "password": base64.b64encode(digest).decode(),
            "salt": base64.b64encode(salt).decode(),
            "iterations": iterations,
        }
    file = broker.folder / "dynamic-security.json"
    file.write_text(json.dumps(document))
    file.chmod(0o600)
    broker.settings |= {"plugin": PLUGIN, "plugin_opt_config_file": file}


@pytest.fixture(
    params=[(with_acl_file, False), (with_dynamic_security, False), (with_dynamic_security, True)],
    ids=["acl file, certificates", "dynamic security, certificates", "dynamic security, passwords"],
)
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Connect as a user. With certificates, the user is the CN of the certificate, whatever the client says."""
    configure, passwords = request.param
    by_certificate = {"require_certificate": "true", "use_identity_as_username": "true"}
    broker = TlsBroker(tmp_path, {"allow_anonymous": "false", **({} if passwords else by_certificate)})
    configure(broker, passwords)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)

        async def connected(user: str) -> MqttTransport:
            transport = MqttTransport(
                broker.host,
                broker.port,
                f"client-of-{user}",
                username=user if passwords else SPY,
                password=user if passwords else None,
                tls=broker.tls if passwords else broker.tls_of(user),
            )
            await stack.enter_async_context(transport)
            await until(lambda: transport.connected or (user == "stranger" and transport.unreachable_reason))
            return transport

        yield connected


async def handled(transport: MqttTransport) -> None:
    """Return when the broker has handled what the client has published before."""
    await transport.unsubscribe("headgate/nothing")


async def test_each_user_receives_and_sends_only_what_the_rules_allow(connect: Connect) -> None:
    transports = {user: await connect(user) for user in (*USERS, SPY)}
    received: dict[str, set[str]] = {user: set() for user in USERS}
    sent: dict[str, set[str]] = {user: set() for user in USERS}
    spy = transports[SPY]

    for user in USERS:
        for short in TOPICS:
            # The plugin refuses a subscription; the list refuses each delivery.
            with contextlib.suppress(TransportError):
                await transports[user].subscribe(
                    topic(short), lambda _, payload, user=user: received[user].add(payload.decode())
                )
    for short in sorted(TOPICS):
        spy.publish(topic(short), short.encode())
    await handled(spy)
    for user in USERS:
        await handled(transports[user])
    assert received == RECEIVES

    for short in TOPICS:
        await spy.subscribe(
            topic(short), lambda name, payload: sent[payload.decode()].add(name.removeprefix("headgate/"))
        )
    for user in USERS:
        for short in sorted(TOPICS):
            transports[user].publish(topic(short), user.encode())
        await handled(transports[user])
    await handled(spy)
    assert sent == SENDS


async def test_a_connection_whose_retained_messages_are_refused_ends_with_the_reason(connect: Connect) -> None:
    """A daemon with it would lead, and no client would find it."""
    transport = await connect("till")
    seen: list[tuple[bool, str | None]] = []
    transport.on_connection(lambda connected: seen.append((connected, transport.unreachable_reason)))
    assert transport.publish(topic("c/cluster"), b"x", retain=True)
    await until(lambda: len(seen) > 1)

    assert [False, True] == [connected for connected, _ in seen[:2]]
    assert "the broker refuses a retained message: Not authorized. Check its" in str(seen[0][1])


async def test_a_client_whose_request_is_refused_stays_connected_and_learns_the_reason(connect: Connect) -> None:
    transport = await connect("till")
    reasons: list[str] = []
    transport.on_refusal(reasons.append)
    assert transport.publish(topic("c/shards/1/requests/shop/1"), b"x", qos=1)
    await until(lambda: reasons)

    assert [each[:62] for each in reasons] == ["the broker refuses the requests of this client: Not authorized"]
    assert transport.connected


async def test_patterns_do_not_widen_what_a_user_receives(connect: Connect) -> None:
    """A subscription with wildcards that covers more than its rights delivers nothing beyond them."""
    overheard: list[str] = []
    till, spy = await connect("till"), await connect(SPY)
    for wide in ("#", "headgate/#", "headgate/c/clients/+/+/replies", "headgate/c/shards/+/requests/#"):
        with contextlib.suppress(TransportError):
            await till.subscribe(wide, lambda name, _: overheard.append(name))
    with contextlib.suppress(TransportError):
        await till.subscribe("headgate/c/clients/till/+/replies", lambda name, _: overheard.append(name))

    for short in sorted(TOPICS):
        spy.publish(topic(short), b"")
    await handled(spy)
    await handled(till)

    assert {"headgate/c/clients/till/1/replies"} <= set(overheard) <= {topic(short) for short in RECEIVES["till"]}


async def test_a_user_without_rights_connects_to_nothing(connect: Connect) -> None:
    stranger, spy = await connect("stranger"), await connect(SPY)
    heard: list[str] = []
    await spy.subscribe("#", lambda name, _: heard.append(name))
    if stranger.connected:
        for short in sorted(TOPICS):
            stranger.publish(topic(short), b"")
        await handled(stranger)
    spy.publish("end", b"")
    await until(lambda: heard)
    assert ["end"] == heard
