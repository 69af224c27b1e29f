"""TLS towards a real broker: what is refused, and what users read about it."""

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from controller.local.certificates import LocalCertificateAuthority
from controller.local.embedded import EmbeddedBroker
from controller.settings.files import toml_document
from headgate import Admin
from headgate.errors import TransportError
from headgate.files.tls import server_context
from headgate.log.event_log import LogEvent
from headgate.settings.config import load_client_config
from headgate.transport.broker_tls import BrokerTls
from headgate.transport.mqtt import MqttTransport
from tests.support.samples.client_configs import client_config
from tests.support.servers.real_brokers import real_broker
from tests.support.servers.tls_broker import TlsBroker, encrypted
from tests.support.waiting import until

pytestmark = pytest.mark.contract

LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)
Broker = tuple[EmbeddedBroker, BrokerTls | None]


async def reason_of(broker: EmbeddedBroker, tls: BrokerTls | None) -> tuple[str, bool]:
    """Return why no connection to ``broker`` is possible, and whether that is a refusal, which waiting does not end."""
    refusals: list[str] = []
    transport = MqttTransport(broker.host, broker.port, "till", tls=tls)
    transport.on_refusal(refusals.append)
    async with transport:
        await until(lambda: transport.unreachable_reason is not None)
        assert not transport.connected
        reason = transport.unreachable_reason
    assert reason is not None
    assert set(refusals) <= {reason}
    return reason, bool(refusals)


async def wrong_authority(stack: AsyncExitStack, folder: Path) -> Broker:
    broker = await stack.enter_async_context(TlsBroker(folder / "broker"))
    other = LocalCertificateAuthority(folder / "other")
    return broker, encrypted(msgspec.structs.replace(broker.options_of(), ca_file=str(other.ca_file)), broker.host)


async def system_authorities(stack: AsyncExitStack, folder: Path) -> Broker:
    broker = await stack.enter_async_context(TlsBroker(folder / "broker"))
    return broker, encrypted(msgspec.structs.replace(broker.options_of(), ca_file=None), broker.host)


async def serving(stack: AsyncExitStack, folder: Path, hosts: tuple[str, ...], **dates: datetime) -> Broker:
    broker = TlsBroker(folder / "broker")
    files = broker.authority.issue("special", hosts=hosts, **dates)
    broker.settings |= {"certfile": files.certificate_file, "keyfile": files.key_file}
    await stack.enter_async_context(broker)
    return broker, broker.tls


async def expired(stack: AsyncExitStack, folder: Path) -> Broker:
    dates = {"not_before": LONG_AGO, "not_after": LONG_AGO + timedelta(days=9)}
    return await serving(stack, folder, ("127.0.0.1",), **dates)


async def not_yet_valid(stack: AsyncExitStack, folder: Path) -> Broker:
    dates = {"not_before": LONG_AGO.replace(year=2190), "not_after": LONG_AGO.replace(year=2191)}
    return await serving(stack, folder, ("127.0.0.1",), **dates)


async def wrong_name(stack: AsyncExitStack, folder: Path) -> Broker:
    return await serving(stack, folder, ("broker.example",))


async def plaintext_port(stack: AsyncExitStack, folder: Path) -> Broker:
    tls = TlsBroker(folder / "unused").tls
    return await stack.enter_async_context(real_broker(folder / "broker")), tls


async def tls_port(stack: AsyncExitStack, folder: Path) -> Broker:
    return await stack.enter_async_context(TlsBroker(folder / "broker")), None


async def without_certificate(stack: AsyncExitStack, folder: Path, **settings: str) -> Broker:
    broker = TlsBroker(folder / "broker", {"require_certificate": "true", **settings})
    return await stack.enter_async_context(broker), broker.tls


async def without_certificate_in_tls_1_2(stack: AsyncExitStack, folder: Path) -> Broker:
    broker, tls = await without_certificate(stack, folder)
    assert tls is not None

    def context() -> ssl.SSLContext:
        made = tls.context()
        made.maximum_version = ssl.TLSVersion.TLSv1_2
        return made

    return broker, BrokerTls(context, tls.server_name)


async def certificate_of_another_authority(stack: AsyncExitStack, folder: Path) -> Broker:
    broker = TlsBroker(folder / "broker", {"require_certificate": "true"})
    await stack.enter_async_context(broker)
    return broker, broker.tls_of("till", authority=LocalCertificateAuthority(folder / "other"))


@pytest.mark.parametrize(
    ("start", "reason", "is_refusal"),
    [
        (
            wrong_authority,
            "the broker's certificate is not signed by an authority in {folder}/other/ca.pem: set ca_file",
            True,
        ),
        (
            system_authorities,
            "the broker's certificate is not signed by the authorities of the system: set ca_file",
            True,
        ),
        (expired, "the certificate of the broker, or of its authority, has expired: renew it", True),
        (not_yet_valid, "the broker's certificate is not valid yet: is the clock of this machine right?", True),
        (wrong_name, "the broker's certificate is not for 127.0.0.1: set server_name to a name in it", True),
        (plaintext_port, "the broker does not answer the TLS handshake: does this port use TLS?", False),
        (tls_port, "the broker closed the connection before it answered; if this port uses TLS, set tls = true", False),
        (without_certificate, "the broker requires a client certificate: set certificate_file and key_file", True),
        (
            without_certificate_in_tls_1_2,
            "the broker requires a client certificate: set certificate_file and key_file",
            True,
        ),
        (certificate_of_another_authority, "the broker refuses the client's certificate (unknown ca): check", True),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_the_reason_of_a_failed_handshake_is_one_line_for_users(start, reason, is_refusal, tmp_path, caplog):
    """An end of the connection is no refusal: it could be a broker that is just starting."""
    async with AsyncExitStack() as stack:
        found, refused = await reason_of(*await start(stack, tmp_path))

    assert found.startswith(reason.format(folder=tmp_path))
    assert "\n" not in found
    assert refused == is_refusal
    logged = [record.msg.event for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert ["broker.unreachable"] == logged


async def test_the_name_of_the_server_may_differ_from_the_host(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker, _ = await wrong_name(stack, tmp_path)
        assert isinstance(broker, TlsBroker)
        options = msgspec.structs.replace(broker.options_of(), server_name="broker.example")
        transport = MqttTransport(broker.host, broker.port, "till", tls=encrypted(options, broker.host))
        await stack.enter_async_context(transport)

        await until(lambda: transport.connected)
        assert transport.unreachable_reason is None


async def test_a_broker_without_tls_1_2_is_refused(tmp_path: Path) -> None:
    """mosquitto offers no earlier version."""
    authority = LocalCertificateAuthority(tmp_path)
    files = authority.issue("broker", hosts=("127.0.0.1",))
    old = server_context(certificate_file=files.certificate_file, key_file=files.key_file)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1

    def refuse(listener: socket.socket) -> None:
        while True:
            with contextlib.suppress(ssl.SSLError), listener.accept()[0] as connection:
                old.wrap_socket(connection, server_side=True)

    options = client_config(tls=True, ca_file=str(authority.ca_file))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
        async with MqttTransport("127.0.0.1", port, "till", tls=encrypted(options, "127.0.0.1")) as transport:
            await until(lambda: transport.unreachable_reason is not None)
        listener.shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError, match="Invalid argument"):
            await refusing

    assert "the broker offers no version of TLS from 1.2: update or configure it" == transport.unreachable_reason


async def test_the_error_of_a_client_says_why_where_and_which_file(tmp_path: Path) -> None:
    """A wrong server name, through a file. Command and library end at once, although they would wait for a minute."""
    async with AsyncExitStack() as stack:
        broker, _ = await wrong_name(stack, tmp_path)
        assert isinstance(broker, TlsBroker)
        file = broker.folder / "client.toml"
        config = client_config(broker_port=broker.port, tls=True, ca_file="certificates/ca.pem")
        file.write_text(toml_document("", config))
        with pytest.raises(TransportError) as caught:
            async with Admin(load_client_config(file), timeout_seconds=60) as admin:
                await admin.list_topics()
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", "--config", str(file), "topic", "list"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed = await command.communicate()

    reason = (
        f"cannot reach the broker at {broker.address} (from {file}): "
        "the broker's certificate is not for 127.0.0.1: set server_name to a name in it"
    )
    assert str(caught.value) == reason
    assert (b"", f"headgate: {reason}\n".encode()) == printed
    assert command.returncode == 1


async def test_each_connection_reads_the_certificates_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While a file is unusable the client says so, and it connects once the file is replaced."""
    caplog.set_level(logging.WARNING, "headgate")
    broker = TlsBroker(tmp_path, {"require_certificate": "true"})
    options = broker.options_of("till")
    certificate = Path(options.certificate_file)
    good = tmp_path / "good.pem"
    shutil.copy(certificate, good)
    async with (
        broker,
        MqttTransport(broker.host, broker.port, "till", tls=encrypted(options, broker.host)) as transport,
    ):
        await until(lambda: transport.connected)
        shutil.copy(broker.authority.folder / "till.key", certificate)
        await broker.restart()
        await until(lambda: "contains no certificate" in (transport.unreachable_reason or ""))
        assert not transport.connected

        shutil.copy(good, certificate)
        await until(lambda: transport.connected)

    reasons = [str(record.msg) for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert 1 == sum("contains no certificate" in reason for reason in reasons), "once per outage"
