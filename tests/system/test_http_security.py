"""A daemon process that serves HTTP with TLS and tokens. It needs no servers: it serves while it waits for them."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.local.certificates import LocalCertificateAuthority
from controller.settings.sections import HttpSettings
from headgate.files.tls import client_context
from tests.support.servers.cluster import Cluster, Daemon
from tests.support.servers.programs import TEST_SECONDS, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


class SecuredDaemon:
    """A daemon on every address of this machine, and a client with a token."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.daemon: Daemon
        self.trusted = LocalCertificateAuthority(folder)
        self.trusted.issue("http", hosts=["127.0.0.1"])

    async def token(self, name: str) -> str:
        """Add a token of ``name`` to the daemon's file."""
        path = str(self.folder / "tokens")
        return (await self.cluster.commands.succeed("http", "token", name, "--file", path)).out.strip()

    async def status(self, path: str, token: str | None = None, context: ssl.SSLContext | None = None) -> int:
        """Return the status of a response; 0 if there is none."""
        return (await self._get(path, token, context))[0]

    async def text(self, path: str, token: str, context: ssl.SSLContext) -> str:
        return (await self._get(path, token, context))[1]

    async def _get(self, path: str, token: str | None, context: ssl.SSLContext | None) -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"https://{self.daemon.http_address.replace('0.0.0.0', '127.0.0.1')}{path}"
        tls = context or client_context(ca_file=self.trusted.ca_file)
        try:
            async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=tls) as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def reload(self, event: str, times: int) -> None:
        """Send SIGHUP, and wait until the log contains ``event`` for the ``times``-th time."""
        self.daemon.process.send_signal(signal.SIGHUP)

        async def logged() -> bool:
            return len(self.daemon.log_entries(event)) == times

        await wait_until(logged, event)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredDaemon]:
    files = {name: str(tmp_path / file) for name, file in (
        ("certificate_file", "http.pem"), ("key_file", "http.key"), ("tokens_file", "tokens")
    )}  # fmt: skip
    async with Cluster(tmp_path, tls=False) as cluster:
        port = cluster.settings("only").http.port
        cluster.sections["http"] = HttpSettings(host="0.0.0.0", port=port, **files)
        yield SecuredDaemon(tmp_path, cluster)


async def test_a_daemon_reads_tokens_and_certificates_again_on_sighup(secured: SecuredDaemon) -> None:
    old = await secured.token("grafana")
    secured.daemon = await secured.cluster.start_daemon("only")

    async def alive() -> bool:
        return await secured.status("/livez") == 200

    await wait_until(alive, "it serves")
    assert [await secured.status("/api/v1/cluster", each) for each in (None, "wrong", old)] == [401, 401, 200]

    (secured.folder / "tokens").unlink()
    new = await secured.token("grafana")
    other = LocalCertificateAuthority(secured.folder / "other")
    files = other.issue("http", hosts=["127.0.0.1"])
    files.certificate_file.replace(secured.folder / "http.pem")
    files.key_file.replace(secured.folder / "http.key")
    await secured.reload("settings.reloaded", 1)
    context = client_context(ca_file=other.ca_file)
    assert await secured.status("/livez") == 0, "the client does not know the new authority"
    assert [await secured.status("/api/v1/cluster", each, context) for each in (old, new)] == [401, 200]

    (secured.folder / "tokens").write_text(f"grafana {new}\n")
    await secured.reload("settings.invalid", 1)
    assert await secured.status("/api/v1/cluster", new, context) == 200, "an unusable file changes nothing"
    assert "\nheadgate_reload_failures_total 1.0\n" in await secured.text("/metrics", new, context)
    (refused,) = secured.daemon.log_entries("settings.invalid")
    assert f"$.http.tokens_file: {secured.folder / 'tokens'}, line 1" in refused["error"]
    log = secured.daemon.log()
    assert [line["reason"] for line in secured.daemon.log_entries("http.denied")] == ["no_token", "wrong_token"]
    assert not any(secret in log for secret in (old, new))


async def test_without_tokens_a_daemon_does_not_listen_on_a_network(secured: SecuredDaemon) -> None:
    secured.cluster.sections["http"] = HttpSettings(host="0.0.0.0")
    secured.daemon = await secured.cluster.start_daemon("only")
    assert await asyncio.wait_for(secured.daemon.process.wait(), TEST_SECONDS) == 1
    (line,) = secured.daemon.log().splitlines()
    assert "$.http.tokens_file: is not set, and http.host '0.0.0.0' is not loopback" in line
