"""Report when the daemon's own certificates expire, so that an alert can precede the outage."""

from __future__ import annotations

from controller.settings.load import Settings
from headgate.files.tls import certificate_expiry
from metrics import events
from metrics.label_values import CertificateUse

USES: tuple[CertificateUse, ...] = ("http", "broker", "zookeeper")


def report_certificates(settings: Settings, observer: events.Observer) -> None:
    """Report each certificate that ``settings`` name. Raises ConfigError if a file is unusable."""
    for use in USES:
        file: str | None = getattr(settings, use).certificate_file
        if file is not None:
            expires = certificate_expiry(file, f"$.{use}.certificate_file").timestamp()
            observer.observe(events.CertificateRead(use=use, expires_at_seconds=expires))
