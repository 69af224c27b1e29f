"""When the daemon's own certificates expire."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.local.certificates import LocalCertificateAuthority
from controller.settings.files import report_certificates
from controller.settings.load import Settings
from controller.settings.sections import BrokerSettings, HttpSettings, LedgerSettings
from headgate.errors import ConfigError
from metrics import events
from tests.support.fakes.recording_observer import RecordingObserver

EXPIRY = datetime(2099, 1, 2, tzinfo=UTC)


def test_each_certificate_is_reported_with_its_use_and_its_end(tmp_path: Path) -> None:
    files = LocalCertificateAuthority(tmp_path).issue("http", hosts=["localhost"], client=True, not_after=EXPIRY)
    paths = {"certificate_file": str(files.certificate_file), "key_file": str(files.key_file)}
    settings = Settings(ledger=LedgerSettings(url="file:///x"), http=HttpSettings(**paths))
    observer = RecordingObserver()
    report_certificates(settings, observer)
    report_certificates(settings.replace(http=HttpSettings(), broker=BrokerSettings(tls=True, **paths)), observer)
    report_certificates(settings.replace(http=HttpSettings()), observer)

    assert observer.events == [
        events.CertificateRead(use=use, expires_at_seconds=EXPIRY.timestamp()) for use in ("http", "broker")
    ]


def test_an_unusable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("x")
    http = HttpSettings(certificate_file=str(tmp_path / "c.pem"), key_file="k")
    with pytest.raises(ConfigError, match=r"\$\.http\.certificate_file: .*c\.pem"):
        report_certificates(Settings(ledger=LedgerSettings(url="file:///x"), http=http), RecordingObserver())
