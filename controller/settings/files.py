"""Read the files that settings name (certificates, keys, passwords and tokens), and write settings as files."""

import ssl
from typing import Any

import msgspec
import tomli_w

from controller.settings.load import Settings
from controller.settings.sections import BrokerSettings, HttpSettings, ZooKeeperSettings
from headgate.errors import ConfigError
from headgate.files.tls import certificate_expiry, client_context, server_context
from headgate.settings.config import ClientConfig
from headgate.transport.broker_tls import context_of
from metrics import events
from metrics.label_values import CertificateUse
from shard.access.rules import OPEN, AccessRules
from web.access import HttpAccess
from web.tokens import read_tokens

USES: tuple[CertificateUse, ...] = ("http", "broker", "zookeeper")
"""The sections that name a certificate of the daemon."""


def check_files(settings: Settings, source: object) -> None:
    """Raise ConfigError if a file that a setting names is unusable; the text names ``source``, setting and file."""
    try:
        settings.broker.password()
        read_broker_tls(settings.broker)
        settings.zookeeper.password()
        read_zookeeper_tls(settings.zookeeper)
        read_http_access(settings.http)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def read_broker_tls(broker: BrokerSettings) -> ssl.SSLContext | None:
    """Return the context of connections to the broker; None: they are not encrypted. Raises ConfigError."""
    return context_of(broker, "$.broker.") if broker.tls else None


def read_zookeeper_tls(zookeeper: ZooKeeperSettings) -> ssl.SSLContext | None:
    """Return the context of connections to ZooKeeper; None: they are not encrypted. Raises ConfigError."""
    return context_of(zookeeper, "$.zookeeper.") if zookeeper.tls else None


def read_http_access(http: HttpSettings, rules: AccessRules = OPEN) -> HttpAccess:
    """Return what the files say now, with the rights in ``rules``. Raises ConfigError if one is unusable."""
    tls = None
    if http.certificate_file is not None and http.key_file is not None:
        tls = server_context(
            "$.http.",
            certificate_file=http.certificate_file,
            key_file=http.key_file,
            client_ca_file=http.client_ca_file,
        )
    tokens = None if http.tokens_file is None else read_tokens(http.tokens_file, "$.http.tokens_file")
    return HttpAccess(tls=tls, tokens=tokens, open_metrics=http.open_metrics, rules=rules)


def read_peer_tls(http: HttpSettings) -> ssl.SSLContext:
    """Return the context of requests to other daemons. Raises ConfigError if a file is unusable.

    Where clients need a certificate, this daemon presents that of its own server.
    """
    own = {} if http.client_ca_file is None else {"certificate_file": http.certificate_file, "key_file": http.key_file}
    try:
        return client_context("$.http.", ca_file=http.peer_ca_file, **own)
    except ConfigError as error:
        raise ConfigError(str(error).replace("$.http.ca_file", "$.http.peer_ca_file", 1)) from None


def report_certificates(settings: Settings, observer: events.Observer) -> None:
    """Report each certificate that ``settings`` name. Raises ConfigError if a file is unusable."""
    for use in USES:
        file: str | None = getattr(settings, use).certificate_file
        if file is not None:
            expires = certificate_expiry(file, f"$.{use}.certificate_file").timestamp()
            observer.observe(events.CertificateRead(use=use, expires_at_seconds=expires))


def toml_document(comment: str, values: Settings | ClientConfig) -> str:
    """Return what `headgate run --config` reads as these settings, or clients as this configuration."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + tomli_w.dumps(_without_none(msgspec.to_builtins(values)))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is None: TOML has no null, and an absent setting has its default."""
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }
