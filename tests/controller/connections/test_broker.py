"""The connections to the broker use the password and the certificates that were read last."""

import asyncio
import itertools
import random
import shutil
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from controller.connections.broker import (
    DESCRIBE_AGAIN_SECONDS,
    DROPPED_TOPIC,
    MAX_OTHER_CLUSTERS,
    BrokerConnection,
    BrokerDrops,
    OtherClusters,
)
from controller.daemon import Daemon
from controller.leadership.session_secret import SessionSecret
from controller.local.certificates import LocalCertificateAuthority
from controller.settings.load import Settings
from controller.settings.sections import AccessSettings, BrokerSettings, LedgerSettings
from headgate.client.connection import Client
from headgate.errors import ConfigError
from headgate.protocol import codec
from headgate.protocol.codec import ClusterDescription
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.transport.mqtt_packets import ReadingWindow
from metrics import events
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.client_configs import client_config
from tests.support.samples.secret_files import write_secret
from tests.support.servers.tls_broker import TlsBroker
from tests.support.waiting import until

SECRET = SessionSecret(SessionSecret.new_digits())
describe = partial(ClusterDescription, protocol=PROTOCOL_VERSION, shards=1, ledger_url="")


def encrypted_settings(broker: TlsBroker) -> Settings:
    """Return settings with which the daemon presents a certificate, whose files a test may replace."""
    options = broker.options_of("daemon")
    copies = {}
    for field in ("ca_file", "certificate_file", "key_file"):
        path = Path(getattr(options, field))
        copies[field] = str(shutil.copy(path, broker.folder / path.name))
    return Settings(
        ledger=LedgerSettings(url=broker.folder.as_uri()),
        access=AccessSettings(open=True),
        broker=BrokerSettings(host=broker.host, port=broker.port or 1, tls=True, **copies),
    )


def test_unusable_certificates_are_found_when_the_daemon_is_created_and_keep_the_old_ones_at_a_reload(tmp_path: Path):
    settings = encrypted_settings(TlsBroker(tmp_path))
    certificate = Path(settings.broker.certificate_file or "")
    good, daemon = certificate.read_text(), Daemon(settings)
    before = daemon._broker._newest_context()

    certificate.write_text("being copied")
    with pytest.raises(ConfigError, match=rf"^\$\.broker\.certificate_file: {certificate} contains no certificate"):
        Daemon(settings)
    other_level = settings.replace(log=msgspec.structs.replace(settings.log, level="error"))
    with pytest.raises(ConfigError, match="contains no certificate"):
        daemon.reload(other_level)
    assert before is daemon._broker._newest_context()
    assert settings.log == daemon.settings.log

    certificate.write_text(good)
    daemon.reload(settings)
    assert before is not daemon._broker._newest_context()


@pytest.mark.contract
async def test_transport_and_device_sessions_connect_with_the_newest_certificates(tmp_path: Path) -> None:
    """The authority of the broker changes while both are connected."""
    broker = TlsBroker(tmp_path / "broker", {"require_certificate": "true"})
    next_authority = LocalCertificateAuthority(tmp_path / "next")
    async with broker:
        settings = encrypted_settings(broker)
        connection = BrokerConnection(settings, RecordingObserver(), random.Random(1))
        async with (
            connection.transport("a", SECRET, describe) as transport,
            connection.device_session("session", lambda _: None, ReadingWindow(1)) as session,
        ):
            await until(lambda: transport.connected and session.connected)
            files = next_authority.issue("broker", hosts=("127.0.0.1",))
            broker.settings |= {
                "certfile": files.certificate_file,
                "keyfile": files.key_file,
                "cafile": next_authority.ca_file,
            }
            await broker.stop()
            await broker.start()
            await until(lambda: "not signed by" in (transport.unreachable_reason or ""))

            own = next_authority.issue("daemon", client=True)
            for source, target in (
                (next_authority.ca_file, settings.broker.ca_file),
                (own.certificate_file, settings.broker.certificate_file),
                (own.key_file, settings.broker.key_file),
            ):
                shutil.copy(source, str(target))
            connection.reload()

            await until(lambda: transport.connected and session.connected)


def set_password(file: Path, password: str) -> None:
    """Let mosquitto know the user till by ``password``."""
    write_secret(file, f"till:{password}\n".encode())
    subprocess.run(["mosquitto_passwd", "-U", str(file)], check=True, timeout=60)


@pytest.mark.contract
async def test_daemon_and_client_connect_with_the_newest_password(tmp_path: Path) -> None:
    """A daemon reads it at a reload, a client at each connection."""
    passwords, secret = tmp_path / "passwords", write_secret(tmp_path / "secret", b"old")
    set_password(passwords, "old")
    broker = TlsBroker(tmp_path / "broker", {"allow_anonymous": "false", "password_file": passwords})
    async with broker:
        user = {"tls": True, "username": "till", "password_file": str(secret), "ca_file": str(broker.authority.ca_file)}
        settings = Settings(
            ledger=LedgerSettings(url=tmp_path.as_uri()),
            broker=BrokerSettings(host=broker.host, port=broker.port, **user),
        )
        connection = BrokerConnection(settings, RecordingObserver(), random.Random(1))
        client = Client.from_config(client_config(broker_port=broker.port, **user), "consumer")
        async with connection.transport("a", SECRET, describe) as daemon, client:
            await until(lambda: daemon.connected and client.transport.connected)
            set_password(passwords, "new")
            await broker.restart()
            for transport in (daemon, client.transport):
                await until(
                    lambda one=transport: one.unreachable_reason == "the broker refuses user till: Not authorized"
                )
            write_secret(secret, b"new")
            await until(lambda: client.transport.connected)
            assert not daemon.connected

            secret.chmod(0o644)
            with pytest.raises(ConfigError, match=r"^\$\.broker\.password_file: every user may access"):
                connection.reload()
            secret.chmod(0o600)
            connection.reload()
            await until(lambda: daemon.connected)


# Another cluster of the same name on the broker is reported, and this one is described again.


OWN, COPY = "a" * 32, "c" * 32


async def test_each_other_ledger_is_reported_once_and_contradicted_at_a_steady_pace() -> None:
    def described(ledger_id: str) -> ClusterDescription:
        return ClusterDescription(protocol=2, shards=4, ledger_url=f"file:///{ledger_id}", ledger_id=ledger_id)

    published, loop = list[float](), asyncio.get_running_loop()
    others = OtherClusters(lambda: described(OWN), lambda: published.append(loop.time()))
    with capture_logs() as logs:
        for payload in [*map(codec.encode, map(described, (OWN, "", "forged", COPY, OWN, COPY))), b"\xc1"]:
            others.on_message("headgate/a/cluster", payload)
        assert [f"file:///{COPY}"] == [each["other_ledger_url"] for each in logs]
        for number in range(2 * MAX_OTHER_CLUSTERS):
            others.on_message("headgate/a/cluster", codec.encode(described(f"{number:032x}")))
            await asyncio.sleep(1)

    assert len(logs) == MAX_OTHER_CLUSTERS
    assert {DESCRIBE_AGAIN_SECONDS} == {later - earlier for earlier, later in itertools.pairwise(published)}


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ([b"5"], []),
        ([b"5", b"5", b"7", b"7"], [2]),
        ([b"5", b"0"], []),
        ([b"5", b"2", b"3"], [2, 1]),
        ([b"0", b"nothing", b"-3", b"1"], [1]),
    ],
    ids=["from before the start", "more", "a restart", "a restart, and more", "what is no number"],
)
def test_what_the_broker_drops_after_the_first_value_is_counted(values: list[bytes], counted: list[int]) -> None:
    observer = RecordingObserver()
    drops = BrokerDrops(observer)
    for value in values:
        drops.on_message(DROPPED_TOPIC, value)

    assert [events.BrokerDroppedMessages(messages=number) for number in counted] == observer.events
