"""The client's configuration: where a cluster is. A small TOML file.

Its path is given, or ``$HEADGATE_CONFIG``, or ``headgate-data/client.toml``, which ``headgate up``
writes. It never contains the password, so it can be shown and logged.

Files that it names are found among systemd's credentials (``$CREDENTIALS_DIRECTORY``) or in its own
folder, and are checked when it is loaded.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headgate.errors import ConfigError, InvalidNameError
from headgate.files.named_file import read_secret, with_located_files
from headgate.protocol.request_fields import require_name
from headgate.transport.broker_tls import BrokerTls, broker_tls
from headgate.transport.connection_options import FILES, TlsOptions, tls_option_problem
from headgate.transport.loopback import host_port

ENVIRONMENT_VARIABLE = "HEADGATE_CONFIG"
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
"""systemd sets it for a service with LoadCredential=."""
DEFAULT_PATH = Path("headgate-data") / "client.toml"


class ClientConfig(TlsOptions, frozen=True, forbid_unknown_fields=True):
    """How a program reaches one cluster."""

    cluster: str
    """Name of the cluster. It is part of every MQTT topic."""
    broker_host: Annotated[str, Meta(min_length=1)]
    """Host name or address of the MQTT broker."""
    broker_port: Annotated[int, Meta(ge=1, le=65535)]
    """Port of the broker. Usual ports are 1883, and 8883 with TLS."""
    ledger_url: Annotated[str, Meta(min_length=1)]
    """The object store that consumers read from, e.g. ``file:///folder`` or ``s3://bucket``."""
    username: str | None = None
    """User name at the broker, a name as in the protocol; None if the broker requires none."""
    password_file: str | None = None
    """File that contains the password and nothing else. Only its owner and group may have access."""
    broker_timeout_seconds: Annotated[float, Meta(gt=0)] | None = None
    """How long the broker may take to accept a program's first connection. Default: 4 seconds for
    commands; a program waits as long as its ``timeout_seconds`` or ``connect_timeout_seconds`` says."""
    file: str | None = None
    """The file that this was read from, for messages. It is not part of the file."""

    @property
    def broker(self) -> str:
        """Where the broker is, and which file says so, for messages."""
        address = host_port(self.broker_host, self.broker_port)
        return address if self.file is None else f"{address} (from {self.file})"

    def password(self) -> str | None:
        """Return the password; None if there is no file for it.

        Raises:
            ConfigError: the file is unusable (`headgate.files.named_file`), or there is no user name for it.
        """
        if self.password_file is None:
            return None
        if self.username is None:
            raise ConfigError(f"{self._source}password_file is set and username is not; set both, or neither")
        return read_secret(self.password_file, f"{self._source}password_file")

    def broker_tls(self) -> BrokerTls | None:
        """Return how to encrypt the connection to the broker; None: not at all."""
        return broker_tls(self, self.broker_host, self._source)

    @property
    def _source(self) -> str:
        return "" if self.file is None else f"{self.file}: "


def load_client_config(path: Path | str | None = None) -> ClientConfig:
    """Return the configuration at ``path``, or at the default location.

    Raises:
        ConfigError: the file is missing or not TOML, a field is missing, unknown or of the wrong
            type, or a certificate or key that it names is unusable. The text names file and field.
    """
    found = Path(os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_PATH) if path is None else Path(path)
    try:
        data = tomllib.loads(found.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"{found} does not exist; name a client configuration, set ${ENVIRONMENT_VARIABLE}, "
            "or start a cluster here with: headgate up"
        ) from None
    except OSError as error:
        raise ConfigError(f"{found} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{found} is not TOML: {error}") from error
    try:
        config = msgspec.structs.replace(_checked(data), file=str(found))
        require_name("cluster", config.cluster)
        if config.username is not None:
            require_name("user", config.username)
    except (_InvalidSettingError, InvalidNameError) as error:
        raise ConfigError(f"{found}: {error}") from error
    if "/" in config.broker_host or config.broker_host.count(":") == 1:
        raise ConfigError(f"{found}: broker_host {config.broker_host!r} is no host name or address; use broker_port")
    if config.username is None:
        config.password()  # There must be none.
    if (problem := tls_option_problem(config)) is not None:
        raise ConfigError(f"{found}: {': '.join(problem)}")
    credentials = os.environ.get(CREDENTIALS_VARIABLE)
    files = ("password_file", *FILES)
    config = with_located_files(config, files, found.parent, Path(credentials) if credentials else None)
    if (tls := config.broker_tls()) is not None:
        tls.context()
    return config


class _InvalidSettingError(ValueError):
    """A setting of the file is unknown, missing or of the wrong type."""


def _checked(data: dict[str, Any]) -> ClientConfig:
    problem = "Object contains unknown field `file`" if "file" in data else ""
    if not problem:
        try:
            return msgspec.convert(data, ClientConfig)
        except msgspec.ValidationError as error:
            problem = str(error)
    from headgate.settings.setting_errors import explain  # noqa: PLC0415 - only an error needs its imports

    raise _InvalidSettingError(explain(problem, ClientConfig, sections=False, hidden={"file"}))
