"""The daemon's connections to the broker use the certificates that were read last."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from controller.broker_connection import BrokerConnection
from controller.daemon import Daemon
from controller.leadership.session_secret import SessionSecret
from controller.local.certificates import LocalCertificateAuthority
from controller.settings.load import AccessSettings, BrokerSettings, LedgerSettings, Settings
from headgate.errors import ConfigError
from tests.support.recording_observer import RecordingObserver
from tests.support.tls_broker import TlsBroker
from tests.support.waiting import until


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


def test_unusable_certificates_are_found_when_the_daemon_is_created_and_keep_the_old_ones_at_a_reload(
    tmp_path: Path,
) -> None:
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
        secret = SessionSecret(SessionSecret.new_digits())
        async with (
            connection.transport("a", secret) as transport,
            connection.device_session(0, lambda _: None) as session,
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
