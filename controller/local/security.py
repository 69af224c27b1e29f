"""The security of a node or cluster on this machine: certificates, users, passwords and tokens, all in its folder.

    access.toml          who may do what; written once, for one user of each role. Change it as you like.
    users/NAME.toml      client configuration of each user in access.toml, with users/NAME.password
    tls/                 a throwaway authority and the certificates that it signed
    secrets/             what the daemons need: passwords at the broker and ZooKeeper, and the token for HTTP

Everything is random, readable for the owner only, and kept for the next start. Delete a file of users/ or secrets/ to
get another secret. This is for one machine; docs/security.md says how to run a production cluster.
"""

import secrets
from pathlib import Path
from typing import Final

import msgspec

from controller.access.file import read_access_file
from controller.local.broker_access import BrokerAccess
from controller.local.certificates import CertificateFiles, LocalCertificateAuthority, ServerTls
from controller.local.private_file import OWNER_ONLY_FOLDER, write_private_file
from controller.settings.files import toml_document
from controller.settings.load import Settings
from controller.settings.sections import AccessSettings
from headgate.errors import ConfigError
from headgate.files.named_file import read_secret
from headgate.settings.config import ClientConfig
from headgate.transport.loopback import IPV4, IPV6
from shard.access.broker_rules import BrokerFormat, export
from shard.access.rules import ANY, AccessRules, Role
from web.tokens import new_token, token_line

DAEMON_USER: Final = "headgate"
HOSTS: Final = ("localhost", IPV4, IPV6)
SECRET_BYTES: Final = 24
TOKEN_HOLDER: Final = "up"  # noqa: S105 - a name
"""The holder of the node's own token; others can be added with `headgate http token`."""

ACCESS: Final = """\
# Users of this node and their rights: see deploy/access.toml. SIGHUP and each start read this file again, and write
# users/NAME.toml, with a random password, for each user in it.
""" + "".join(f'\n[[users.{role}]]\nrole = "{role}"\n' for role in Role)


class LocalSecurity:
    """Everything secret of one folder."""

    def __init__(self, folder: Path, cluster: str, *, tls: bool = True, access: str = ACCESS) -> None:
        """Read what earlier starts created, and create the rest.

        Args:
            folder: folder of the node or cluster.
            cluster: its name.
            tls: encrypt all connections. False: passwords and rights only.
            access: the first content of access.toml.

        Raises ConfigError: a file cannot be read or written, or is not valid.
        """
        self._folder = folder
        self._cluster = cluster
        self._authority = LocalCertificateAuthority(folder / "tls") if tls else None
        self._daemon = None if self._authority is None else self._authority.issue("daemon", client=True)
        for name in ("users", "secrets", "broker"):
            _make_folder(folder / name)
        self.access_file = folder / "access.toml"
        if not self.access_file.exists():
            write_private_file(self.access_file, access)
        self.http_token_file = folder / "secrets" / "http.token"
        self._rules: AccessRules
        self.broker_access = BrokerAccess(folder / "broker" / "passwords", folder / "broker" / "access.acl")
        self.reload()
        self._accept_token(_secret(self.http_token_file, new_token()))
        _secret(folder / "secrets" / "zookeeper.password")

    @property
    def users(self) -> list[str]:
        return sorted(self._rules.users)

    @property
    def administrator(self) -> str:
        """The user of ``client.toml``: the first one in the access file who may do everything."""
        return _administrator(self._rules, self.access_file)

    @property
    def ca_file(self) -> Path | None:
        """The certificate that clients trust; None without TLS."""
        return None if self._authority is None else self._authority.ca_file

    def broker_tls(self) -> ServerTls | None:
        """Return the broker's certificate; None without TLS. Clients have passwords. Raises ConfigError."""
        return self._server_tls("broker", None)

    def zookeeper_tls(self) -> ServerTls | None:
        """Return ZooKeeper's certificate; None without TLS. Only daemons have the client's one. Raises ConfigError."""
        return self._server_tls("zookeeper", self._daemon)

    def reload(self) -> None:
        """Read the access file again, and make the broker's files from it. The broker must then read them.

        Raises ConfigError: the access file is not valid; nothing has changed.
        """
        rules = read_access_file(self.access_file)
        _administrator(rules, self.access_file)
        acl = export(rules, BrokerFormat.ACL_FILE, cluster=self._cluster, daemon_user=DAEMON_USER)
        passwords = {user: _secret(self.password_file(user)) for user in sorted(rules.users)}
        passwords[DAEMON_USER] = _secret(self._folder / "secrets" / "broker.password")
        self.broker_access.write(passwords, acl)
        self._rules = rules

    def password_file(self, user: str) -> Path:
        return self._folder / "users" / f"{user}.password"

    def secure(self, settings: Settings) -> Settings:
        """Return the settings of a daemon, with its credentials."""
        secrets_folder, daemon, ca_file = self._folder / "secrets", self._daemon, self.ca_file
        replace = msgspec.structs.replace
        broker = replace(settings.broker, username=DAEMON_USER, password_file=str(secrets_folder / "broker.password"))
        zookeeper = replace(
            settings.zookeeper, username=DAEMON_USER, password_file=str(secrets_folder / "zookeeper.password")
        )
        http = settings.http
        if http.tokens_file is None:
            http = replace(http, tokens_file=str(secrets_folder / "http.tokens"))
        if self._authority is not None and daemon is not None:
            if http.certificate_file is None:
                http = replace(http, **_files(self._authority.issue("http", hosts=HOSTS)), peer_ca_file=str(ca_file))
            broker = replace(broker, tls=True, ca_file=str(ca_file))
            zookeeper = replace(zookeeper, tls=True, ca_file=str(ca_file), **_files(daemon))
        return settings.replace(
            access=AccessSettings(file=str(self.access_file)), broker=broker, zookeeper=zookeeper, http=http
        )

    def client_config(self, config: ClientConfig, user: str | None = None) -> ClientConfig:
        """Return the configuration of a client that is ``user``; default: the administrator."""
        user = user or self.administrator
        secured = msgspec.structs.replace(config, username=user, password_file=str(self.password_file(user)))
        if self.ca_file is None:
            return secured
        return msgspec.structs.replace(secured, tls=True, ca_file=str(self.ca_file))

    def _accept_token(self, token: str) -> None:
        """Let HTTP accept ``token`` instead of an earlier one; lines that the user added stay."""
        path = self._folder / "secrets" / "http.tokens"
        lines = path.read_text().splitlines() if path.exists() else []
        others = [line for line in lines if not line.startswith(f"{TOKEN_HOLDER} ")]
        write_private_file(path, "\n".join([*others, token_line(TOKEN_HOLDER, token)]) + "\n")

    def _server_tls(self, name: str, client: CertificateFiles | None) -> ServerTls | None:
        if self._authority is None:
            return None
        return ServerTls(self._authority.issue(name, hosts=HOSTS), self._authority.ca_file, client)

    def write_client_files(self, config: ClientConfig) -> None:
        """Write the configuration of each user. Raises ConfigError."""
        for user in self.users:
            text = toml_document(
                f"Written by `headgate up` at each start, for the user {user}.", self.client_config(config, user)
            )
            write_private_file(self._folder / "users" / f"{user}.toml", text)


def _secret(path: Path, first: str | None = None) -> str:
    """Return the secret in ``path``; a new file gets ``first``, or a random one. Raises ConfigError."""
    if not path.exists():
        write_private_file(path, f"{first or secrets.token_urlsafe(SECRET_BYTES)}\n")
    return read_secret(path, path.name)


def _administrator(rules: AccessRules, file: Path) -> str:
    for user, rights in rules.users.items():
        if any(right.role is Role.ADMINISTRATOR and ANY in right.topics for right in rights):
            return user
    raise ConfigError(f"{file}: no user is an administrator of all topics, and client.toml needs one; add one")


def _files(certificate: CertificateFiles) -> dict[str, str]:
    return {"certificate_file": str(certificate.certificate_file), "key_file": str(certificate.key_file)}


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
