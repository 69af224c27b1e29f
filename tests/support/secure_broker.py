"""mosquitto with users and an access control list, for tests of access control."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

from controller.local.embedded import EmbeddedBroker
from controller.local.supervised_process import ProcessSpec


class SecureBroker(EmbeddedBroker):
    """Only ``users`` (user → password) can connect, each with its rights in ``acl``."""

    def __init__(self, folder: Path, port: int, users: Mapping[str, str], acl: str) -> None:
        super().__init__(folder, port, kind="mosquitto")
        self._users = users
        self._acl = acl

    def _process_spec(self, port: int) -> ProcessSpec:
        spec = super()._process_spec(port)
        passwords, acl, config = (self.folder / name for name in ("passwords", "access.acl", "mosquitto.conf"))
        passwords.write_text("".join(f"{user}:{password}\n" for user, password in self._users.items()))
        subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True, timeout=60)
        acl.write_text(self._acl)
        for secret in (passwords, acl):
            secret.chmod(0o600)
        text = config.read_text().replace("allow_anonymous true", "allow_anonymous false")
        config.write_text(f"{text}password_file {passwords}\nacl_file {acl}\n")
        return ProcessSpec(spec.name, spec.command, spec.log_path, lambda: _listens(port), environ=spec.environ)


async def _listens(port: int) -> bool:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    return True
