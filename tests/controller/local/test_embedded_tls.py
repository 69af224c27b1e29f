"""The embedded servers with TLS and users, as real processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import aiomqtt  # noqa: TID251 - any client
import pytest
import pytest_asyncio
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from controller.local.broker_access import BrokerAccess
from controller.local.certificates import LocalCertificateAuthority, ServerTls
from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper, find_mosquitto
from headgate.files.tls import client_context

pytestmark = [pytest.mark.contract, pytest.mark.asyncio(loop_scope="module")]

HOSTS = ("localhost", "127.0.0.1")
ACL = """
user shop
topic write shop/#
topic read news/+
user press
topic write news/+
topic read #
"""
PASSWORDS = {"shop": "secret of shop", "press": "secret of press"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalCertificateAuthority:
    return LocalCertificateAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> BrokerAccess:
    folder = tmp_path_factory.mktemp("access")
    return BrokerAccess(folder / "passwords", folder / "access.acl")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["mosquitto", "amqtt"])
async def broker(
    request: pytest.FixtureRequest,
    authority: LocalCertificateAuthority,
    access: BrokerAccess,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[EmbeddedBroker]:
    if request.param == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed; CI installs it")
    access.write(PASSWORDS, ACL)
    tls = ServerTls(authority.issue("broker", hosts=HOSTS), authority.ca_file)
    async with EmbeddedBroker(tmp_path_factory.mktemp("broker"), kind=request.param, tls=tls, access=access) as broker:
        yield broker


def client(
    broker: EmbeddedBroker, authority: LocalCertificateAuthority, user: str, **options: object
) -> aiomqtt.Client:
    return aiomqtt.Client(
        **{  # type: ignore[arg-type]
            "hostname": broker.host,
            "port": broker.port,
            "username": user,
            "password": PASSWORDS.get(user),
            "tls_context": client_context(ca_file=authority.ca_file),
            "timeout": 30,
            **options,
        }
    )


async def test_a_user_sends_and_receives_what_its_rights_allow(broker, authority):
    async with client(broker, authority, "press") as press, client(broker, authority, "shop") as shop:
        await shop.subscribe("news/+")
        await press.subscribe("shop/orders")
        await press.publish("news/today", b"good", qos=1)
        await shop.publish("shop/orders", b"one", qos=1)
        async with asyncio.timeout(30):
            found = [(await anext(aiter(each.messages))).payload for each in (shop, press)]
    assert [b"good", b"one"] == found


async def test_a_user_neither_sends_nor_receives_anything_else(broker, authority):
    async with client(broker, authority, "press") as press, client(broker, authority, "shop") as shop:
        await press.subscribe("#")
        await shop.subscribe([("shop/#", 1), ("#", 1)]) if broker.kind == "mosquitto" else None
        await shop.subscribe("news/+")
        await shop.publish("news/forged", b"forged", qos=1)
        await shop.publish("shop/last", b"last", qos=1)
        await press.publish("news/last", b"last", qos=1)
        async with asyncio.timeout(30):
            published = str((await anext(aiter(press.messages))).topic)
            received = str((await anext(aiter(shop.messages))).topic)
    assert ("shop/last", "news/last") == (published, received)


@pytest.mark.parametrize(("user", "password"), [("shop", "guess"), ("unknown", "guess"), (None, None)])
async def test_a_client_without_a_right_password_is_refused(broker, authority, user, password):
    with pytest.raises(aiomqtt.MqttError, match=r"[Nn]ot authorized"):
        await client(broker, authority, user, password=password).__aenter__()


async def test_the_last_message_of_a_client_needs_the_same_right(broker, authority):
    """amqtt does not even connect the client."""
    async with client(broker, authority, "press") as press:
        await press.subscribe("news/+")
        with suppress(aiomqtt.MqttError):
            shop = client(broker, authority, "shop", will=aiomqtt.Will("news/forged", b"forged"))
            await shop.__aenter__()
            assert "mosquitto" == broker.kind
            shop._client._sock_close()
            await shop.__aexit__(None, None, None)
        await press.publish("news/last", b"last", qos=1)
        async with asyncio.timeout(30):
            assert "news/last" == str((await anext(aiter(press.messages))).topic)


async def test_a_client_without_tls_gets_no_answer(broker: EmbeddedBroker) -> None:
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x05\x00\x01a")
    answer = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert answer[:1] != b"\x20", "no CONNACK"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def zookeeper(
    authority: LocalCertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmbeddedZooKeeper]:
    tls = ServerTls(
        authority.issue("zookeeper", hosts=HOSTS), authority.ca_file, authority.issue("headgate", client=True)
    )
    async with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), tls=tls) as server:
        yield server


def ask_zookeeper(zookeeper: EmbeddedZooKeeper, seconds: float, **options: object) -> int:
    """Return the number of nodes in the root."""
    found = KazooClient(zookeeper.address, **options)
    try:
        found.start(timeout=seconds)
        return len(found.get_children("/"))
    finally:
        found.stop()
        found.close()


async def test_zookeeper_admits_a_client_with_a_certificate(zookeeper, authority):
    files = authority.issue("headgate", client=True)
    options = {
        "use_ssl": True,
        "ca": str(authority.ca_file),
        "certfile": str(files.certificate_file),
        "keyfile": str(files.key_file),
    }
    assert 1 == await asyncio.to_thread(ask_zookeeper, zookeeper, 60, **options)
    await zookeeper.restart()
    assert 1 == await asyncio.to_thread(ask_zookeeper, zookeeper, 60, **options)


@pytest.mark.parametrize("lacks", ["TLS", "a certificate"])
async def test_zookeeper_admits_no_other_client(zookeeper, authority, lacks):
    options = {} if lacks == "TLS" else {"use_ssl": True, "ca": str(authority.ca_file)}
    with pytest.raises(KazooTimeoutError):
        await asyncio.to_thread(ask_zookeeper, zookeeper, 2, **options)


async def test_there_is_no_port_without_tls(zookeeper: EmbeddedZooKeeper) -> None:
    config = (zookeeper.folder / "zoo.cfg").read_text()
    assert "clientPort=" not in config.replace("secureClientPort=", "")
    assert 0o600 == (zookeeper.folder / "server.pem").stat().st_mode & 0o777
