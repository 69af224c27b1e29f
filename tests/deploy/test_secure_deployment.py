"""The shipped files work together: real servers, a real daemon and a client, with TLS and users everywhere.

The commands of docs/security.md make certificates, passwords, the broker's list and a token. Only folders, ports and
what Debian's packages add are replaced.
"""

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from controller.leadership.zookeeper.connection import ZooKeeperCredentials
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.local.embedded import find_mosquitto, zookeeper_classpath
from controller.local.reserved_port import ReservedPort
from controller.local.supervised_process import ProcessSpec, SupervisedProcess
from drain.spark.java import find_java
from headgate import Admin, Producer
from headgate.files.tls import client_context
from headgate.model.identifiers import SegmentId
from headgate.settings.config import ClientConfig
from tests.deploy.test_units import DEPLOY, UNITS, directives
from tests.support.documents.markdown import blocks
from tests.support.samples.secret_files import write_secret
from tests.support.servers.programs import TEST_SECONDS, RunningProgram, finish, start, wait_until
from tests.support.servers.prometheus_server import prometheus
from tests.support.waiting import until
from tests.support.worlds.election_environments import Candidate

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

SERVER: Final = "localhost"
USERS: Final = ("operator", "shop")
FOLDERS: Final = ("etc/headgate", "etc/mosquitto/certs", "etc/zookeeper/tls", "etc/prometheus", "credentials")
GUIDE: Final = DEPLOY.parent / "docs" / "security.md"


@dataclass(frozen=True, slots=True)
class Ports:
    broker: int
    zookeeper: int
    http: int


class Deployment:
    """The files of `deploy/`, installed below ``root`` as docs/security.md says."""

    def __init__(self, root: Path, ports: Ports) -> None:
        self.root = root
        self.ports = ports
        self.settings = root / "etc/headgate/headgate.toml"
        self.credentials = root / "credentials"
        self.ca_file = root / "ca/ca.pem"
        for folder in (*FOLDERS, "ca", "var/lib/mosquitto"):
            (root / folder).mkdir(parents=True)
        self._install(
            "headgate.toml", self.settings, {"2281": ports.zookeeper, "8883": ports.broker, "9464": ports.http}
        )
        self._install("access.toml", root / "etc/headgate/access.toml", {})
        self._install("mosquitto.conf", root / "etc/mosquitto/mosquitto.conf", {"8883": ports.broker})
        self._install("zookeeper.cfg", root / "etc/zookeeper/zoo.cfg", {"2281": ports.zookeeper})
        self._run_guide()

    def take_users_from_certificates(self) -> None:
        """Use what the comments of the shipped files name in place of the broker's passwords."""
        shutil.copy(self.ca_file, self.root / "etc/mosquitto/certs/client-ca.pem")
        for file in (self.settings, self.root / "etc/mosquitto/mosquitto.conf"):
            option = "^# (certificate_file|key_file|cafile|require_certificate|use_identity_as_username)"
            file.write_text(re.sub(option, r"\1", file.read_text(), flags=re.MULTILINE))

    @property
    def environ(self) -> dict[str, str]:
        """What systemd passes to the daemon."""
        return {"CREDENTIALS_DIRECTORY": str(self.credentials)}

    def client(self, user: str) -> ClientConfig:
        return ClientConfig(
            cluster="local",
            broker_host=SERVER,
            broker_port=self.ports.broker,
            ledger_url=f"file://{self.root}/var/lib/headgate/ledger",
            username=user,
            password_file=str(write_secret(self.root / f"{user}.secret", f"password of {user}".encode())),
            tls=True,
            ca_file=str(self.ca_file),
        )

    def token(self) -> str:
        return (self.root / "etc/prometheus/headgate-token").read_text().strip()

    def daemon_tls(self) -> ssl.SSLContext:
        """Return the context of a client with the daemon's certificate."""
        daemon = self.root / "etc/headgate/daemon"
        return client_context(ca_file=self.ca_file, certificate_file=f"{daemon}.pem", key_file=f"{daemon}.key")

    async def ask_zookeeper(self, word: bytes, tls: ssl.SSLContext | None) -> bytes:
        """Return the reply to a four-letter word; empty if the server ends the connection."""
        reader, writer = await asyncio.open_connection(SERVER, self.ports.zookeeper, ssl=tls)
        try:
            writer.write(word)
            return await reader.read(4096)
        except (ssl.SSLError, ConnectionError):
            return b""
        finally:
            writer.transport.abort()

    def broker(self) -> SupervisedProcess:
        program, config = find_mosquitto(), self.root / "etc/mosquitto/mosquitto.conf"
        assert program is not None
        # As root, mosquitto would change to its own user, which cannot read this one.
        user = "user root\n" if os.geteuid() == 0 else ""
        config.write_text(user + config.read_text())
        return SupervisedProcess(
            ProcessSpec("mosquitto", [program, "-c", str(config)], self.root / "mosquitto.log", self._broker_is_ready)
        )

    def zookeeper(self) -> SupervisedProcess:
        config = self.root / "etc/zookeeper/zoo.cfg"
        # Only ZooKeeper's distribution contains this class, Spark's jars do not.
        config.write_text(re.sub(r"^metricsProvider\..*\n", "", config.read_text(), flags=re.MULTILINE))
        java = find_java(self.root / "java") / "bin/java"
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = [str(java), "-Xmx256m", "-cp", zookeeper_classpath(), main, str(config)]
        return SupervisedProcess(
            ProcessSpec("ZooKeeper", command, self.root / "zookeeper.log", self._zookeeper_is_ready)
        )

    def _install(self, name: str, path: Path, ports: dict[str, int]) -> None:
        text = re.sub(r"/(etc|var|run)/", rf"{self.root}/\1/", (DEPLOY / name).read_text())
        for shipped, port in ports.items():
            assert shipped in text
            text = text.replace(shipped, str(port))
        path.write_text(text)

    def _run_guide(self) -> None:
        """Run the commands that make files, and add users whose passwords the tests know."""
        certificates, passwords, rights, _ = (
            block.text for block in blocks(GUIDE) if block.attributes.get("no-run") == "needs a deployment"
        )
        passwords, asks, _ = passwords.partition("mosquitto_passwd /etc/mosquitto/headgate.passwd shop")
        assert asks, "the command that asks for a password, which a test cannot enter"
        script = re.sub(r"/etc/", f"{self.root}/etc/", certificates + passwords + rights)
        headgate = f'headgate() {{ "{sys.executable}" -m headgate "$@"; }}\n'
        subprocess.run(["bash", "-euo", "pipefail", "-c", headgate + script], cwd=self.ca_file.parent, check=True)
        users = self.root / "etc/mosquitto/headgate.passwd"
        for user in USERS:
            subprocess.run(["mosquitto_passwd", "-b", users, user, f"password of {user}"], check=True, timeout=60)
        for credential in directives(UNITS[0])["LoadCredential"]:
            name, _, path = credential.partition(":")
            write_secret(self.credentials / name, Path(f"{self.root}{path}").read_bytes())

    async def _broker_is_ready(self) -> bool:
        _, writer = await asyncio.open_connection(SERVER, self.ports.broker)
        writer.close()
        return True

    async def _zookeeper_is_ready(self) -> bool:
        return b"Mode:" in await self.ask_zookeeper(b"srvr", self.daemon_tls())


@pytest.fixture
async def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Deployment]:
    with ReservedPort() as broker, ReservedPort() as zookeeper, ReservedPort() as http:
        deployment = Deployment(tmp_path / "root", Ports(broker.number, zookeeper.number, http.number))
        if hasattr(request, "param"):
            deployment.take_users_from_certificates()
        async with deployment.broker(), deployment.zookeeper():
            yield deployment


async def ready_daemon(deployment: Deployment, token: str) -> RunningProgram:
    """Start the daemon as its unit does; return when it leads all shards."""
    config = str(deployment.settings)
    checked = await finish("check-config", "--config", config, env=deployment.environ)
    assert checked.code == 0, checked.err
    assert "warning" not in checked.err
    daemon = await start("run", "--config", config, out=deployment.root / "daemon.out", env=deployment.environ)

    async def leads() -> bool:
        status, text = await scraped(deployment, "/readyz", token)
        return status == 200 and "leads 4 of 4 shards" in text

    await wait_until(leads, daemon.errors)
    return daemon


async def scraped(deployment: Deployment, path: str, token: str | None) -> tuple[int, str]:
    """Ask as prometheus.yml does; status 0 without an answer."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"https://127.0.0.1:{deployment.ports.http}{path}"
    tls = client_context(ca_file=deployment.ca_file)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=tls, server_hostname=SERVER) as response,
        ):
            return response.status, await response.text()
    except aiohttp.ClientError:
        return 0, ""


async def test_the_shipped_files_make_a_cluster_in_which_every_connection_is_secure(deployment: Deployment) -> None:
    token = deployment.token()
    daemon = await ready_daemon(deployment, token)

    async with Admin(deployment.client("operator")) as admin:
        await admin.create_topic("orders", 1)
    async with Producer(deployment.client("shop")) as producer:
        sent = await producer.send_and_wait("orders", b"key", b"value")
    assert sent.offset == 0

    assert (await scraped(deployment, "/metrics", None))[0] == 401
    status, metrics = await scraped(deployment, "/metrics", token)
    assert status == 200
    assert "headgate_zookeeper_refused 0.0" in metrics
    await prometheus_scrapes(deployment)
    await zookeeper_refuses_strangers(deployment)
    files = (deployment.root / "etc/headgate" / name for name in ("mqtt-password", "zookeeper-password"))
    secrets = [token, "password of", *(file.read_text().strip() for file in files)]
    assert not any(secret in daemon.errors() for secret in secrets)
    assert await daemon.terminate() == 0


@pytest.mark.parametrize("deployment", ["by certificate"], indirect=True)
async def test_a_broker_knows_the_daemon_by_the_certificate_that_the_guide_makes(deployment: Deployment) -> None:
    daemon = await ready_daemon(deployment, deployment.token())
    assert await daemon.terminate() == 0


async def prometheus_scrapes(deployment: Deployment) -> None:
    """With the shipped configuration and rules, more often."""
    folder = deployment.root / "etc/prometheus"
    shutil.copy(deployment.ca_file, folder / "headgate-ca.pem")
    shutil.copy(DEPLOY / "prometheus/headgate.rules.yml", folder)
    config = folder / "prometheus.yml"
    text = (DEPLOY / "prometheus/prometheus.yml").read_text().replace("9464", str(deployment.ports.http))
    text, *_ = text.replace("/etc/", f"{deployment.root}/etc/").partition("  # The metrics of ZooKeeper")
    config.write_text(text.replace("_interval: 15s", "_interval: 1s"))

    async with prometheus(config, deployment.root) as server:

        async def leads() -> bool:
            return list((await server.query("count(job_shard:headgate_shard_is_leader:sum == 1)")).values()) == [4]

        await wait_until(leads, (deployment.root / "prometheus.log").read_text)
        (target,) = await server.targets()
        assert (target["labels"]["job"], target["health"], target["lastError"]) == ("headgate", "up", "")
        assert await server.query('headgate_file_system_free_bytes{use="ledger"} > 0') != {}
        async with Admin(deployment.client("operator")) as admin:
            await admin.split("orders", SegmentId(0))

        async def is_annotated() -> bool:
            return list(await server.query(splits)) == ['{"kind": "split", "reason": "command"}']

        events = json.loads((DEPLOY / "grafana/headgate.json").read_text())["annotations"]["list"]
        splits = next(event["expr"] for event in events if event["name"] == "Splits").replace("$job", "headgate")
        await wait_until(is_annotated, (deployment.root / "prometheus.log").read_text)


async def zookeeper_refuses_strangers(deployment: Deployment) -> None:
    """Clients without TLS, without a certificate, and with a certificate but without a user."""
    assert b"Zookeeper version: 3.9" in await deployment.ask_zookeeper(b"srvr", deployment.daemon_tls())
    assert b"not in the whitelist" in await deployment.ask_zookeeper(b"dump", deployment.daemon_tls())
    assert await deployment.ask_zookeeper(b"srvr", None) == b""
    assert await deployment.ask_zookeeper(b"srvr", client_context(ca_file=deployment.ca_file)) == b""
    stranger = Candidate()
    async with ZooKeeperElections(
        f"{SERVER}:{deployment.ports.zookeeper}",
        root="/headgate/other",
        instance="stranger",
        session_timeout_seconds=6,
        on_event=stranger.on_event,
        credentials=ZooKeeperCredentials(None, deployment.daemon_tls()),
    ) as elections:
        elections.contend(0)
        await until(lambda: stranger.problem is not None)
        assert stranger.problem == "ZooKeeper requires a user: set [zookeeper] username and password_file"
