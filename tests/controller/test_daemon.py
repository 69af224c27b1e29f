"""The daemon's own steps before a term. tests/system runs it as a process."""

import asyncio
import gc
import socket
import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from controller.daemon import Daemon
from controller.leadership.election import Connected, ElectionClientError, Refused
from controller.leadership.zookeeper.connection import DigestUser, ZooKeeperCredentials
from controller.local.certificates import LocalCertificateAuthority
from controller.process.garbage_collection import MAX_PROMOTIONS, NEVER
from controller.settings import sections
from controller.settings.load import Settings
from headgate.errors import ConfigError, HeadgateError
from headgate.protocol import codec
from headgate.protocol.codec import Presence, presence_topic
from shard.access.quotas import Limits
from shard.access.rules import AccessRules, Act, Action, Right, Role
from shard.requests.client_ids import ClientIds
from tests.support.samples.secret_files import write_secret
from tests.support.waiting import until
from web.tokens import token_line


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(ledger=sections.LedgerSettings(url=tmp_path.as_uri()))


async def test_a_daemon_decides_when_old_garbage_is_collected_and_is_watched(settings: Settings) -> None:
    """With a ZooKeeper that is not there: it runs until it is stopped."""
    daemon = Daemon(
        settings.replace(
            zookeeper=sections.ZooKeeperSettings(hosts="127.0.0.1:1"),
            http=sections.HttpSettings(port=0),
            drain=sections.DrainSettings(spawn=False),
        )
    )
    stop, before = asyncio.Event(), gc.get_threshold()
    running = asyncio.create_task(daemon.run(stop))
    await until(lambda: gc.get_threshold()[2] == NEVER)
    await until(lambda: "loop-watchdog" in {each.name for each in threading.enumerate()})
    for _ in range(MAX_PROMOTIONS):
        gc.collect(1)
    name = "headgate_garbage_collection_seconds_count"
    await until(lambda: daemon.instruments.registry.get_sample_value(name, {"scope": "new"}))
    stop.set()
    await running

    assert gc.get_threshold() == before


def test_a_jump_of_the_clock_is_reported_and_not_followed(settings: Settings) -> None:
    clocks = [(10**12, 0), (10**12, 0), (10**12 + 1000, 1000), (2 * 10**12, 2000), (10**12 + 3000, 3000)]
    daemon: Any = Daemon(settings, read_clocks=iter(clocks).__next__)

    with structlog.testing.capture_logs() as logged:
        assert [10**12 + 1000, 10**12 + 2000, 10**12 + 3000] == [daemon._now_ms() for _ in range(3)]
    assert [("clock.stepped", 10**9 - 2, "check"), ("clock.stepped", 0, "none:")] == [
        (line["event"], line["held_seconds"], line["advice"].split()[0]) for line in logged
    ]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        pytest.param(b"x", "the ZooKeeper client has ended", id="too short for its header"),
        pytest.param(struct.pack("!iqi", -4, 0, -115), "scheme digest", id="the scheme digest is switched off"),
    ],
)
async def test_the_end_of_the_zookeeper_client_ends_the_daemon(
    tmp_path: Path, settings: Settings, reply: bytes, reason: str
) -> None:
    """Both replies end kazoo's connection thread."""
    password = write_secret(tmp_path / "password", b"sesame")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        accepted = struct.pack("!iiqi16s?", 0, 4000, 1, 16, b"", False)
        for body in (accepted, reply):
            writer.write(len(body).to_bytes(4) + body)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        daemon = Daemon(
            settings.replace(
                zookeeper=sections.ZooKeeperSettings(
                    hosts=f"127.0.0.1:{port}", username="headgate", password_file=str(password)
                ),
                http=sections.HttpSettings(port=0),
                drain=sections.DrainSettings(spawn=False),
            )
        )
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(60):
                await daemon.run(asyncio.Event())

    assert caught.group_contains(ElectionClientError, match=reason)


def test_a_daemon_that_has_not_joined_a_cluster_takes_no_token_for_that_of_another_daemon(settings: Settings) -> None:
    assert not Daemon(settings)._is_peer("any")


@pytest.mark.parametrize(("known", "published"), [(None, 1), ("a" * 32, 0)])
async def test_clients_get_the_id_of_a_ledger_once_it_is_claimed(
    settings: Settings, known: str | None, published: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, calls = Daemon(settings), []
    monkeypatch.setattr(daemon._broker, "publish_description", lambda: calls.append(1))
    identity = SimpleNamespace(ledger_id=known)

    async def require() -> None:
        identity.ledger_id = "a" * 32

    identity.require = require
    await daemon._require_ledger(identity)

    assert published == len(calls)


async def test_health_and_metrics_name_what_zookeeper_refuses(settings: Settings) -> None:
    daemon: Any = Daemon(settings)

    def shown() -> tuple[str, float | None]:
        (zookeeper,) = [each for each in daemon.health().components if each.component == "zookeeper"]
        return zookeeper.reason, daemon.instruments.registry.get_sample_value("headgate_zookeeper_refused")

    daemon._election_events.handle(Connected())
    assert shown() == ("connected", 0)
    daemon._election_events.handle(Refused("node /headgate is closed"))
    assert shown() == ("node /headgate is closed; leaders continue, but this daemon cannot take over", 1)
    daemon._election_events.handle(Refused(None))
    assert shown() == ("connected", 0)


async def test_what_a_network_can_read_is_logged_at_the_start(tmp_path: Path, settings: Settings) -> None:
    secret = write_secret(tmp_path / "secret", b"hush")
    with socket.create_server(("127.0.0.1", 0)) as taken, structlog.testing.capture_logs() as logged:
        open_settings = settings.replace(
            zookeeper=sections.ZooKeeperSettings(hosts="zk1:2181"),
            broker=sections.BrokerSettings(host="broker.example", username="u", password_file=str(secret)),
            http=sections.HttpSettings(port=taken.getsockname()[1]),
        )
        with pytest.raises(HeadgateError, match="cannot listen"):
            await Daemon(open_settings).run(asyncio.Event())

    warned = [line["advice"].partition(" is not set")[0] for line in logged if line["event"] == "settings.insecure"]
    assert warned == ["$.broker.tls", "$.zookeeper.username", "$.zookeeper.tls"]
    assert "hush" not in str(logged)


def test_sighup_reads_the_files_of_zookeeper_or_changes_nothing(tmp_path: Path, settings: Settings) -> None:
    password = write_secret(tmp_path / "password", b"sesame")
    authority = LocalCertificateAuthority(tmp_path / "ca")
    zookeeper = sections.ZooKeeperSettings(
        username="headgate", password_file=str(password), tls=True, ca_file=str(authority.ca_file)
    )
    daemon: Any = Daemon(settings.replace(zookeeper=zookeeper, access=sections.AccessSettings(open=True)))
    used: list[ZooKeeperCredentials] = []

    class Elections:
        use = staticmethod(used.append)

    daemon._elections = Elections()

    write_secret(password, b"open sesame")
    daemon.reload(daemon.settings)
    assert [DigestUser("headgate", "open sesame")] == [credentials.user for credentials in used]
    assert used[0].tls is not None
    assert "sesame" not in repr(used)

    authority.ca_file.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"\$\.zookeeper\.ca_file: .*ca.pem contains no certificate"):
        daemon.reload(daemon.settings)
    assert len(used) == 1


def test_sighup_puts_other_access_rules_into_force_or_changes_nothing(tmp_path: Path, settings: Settings) -> None:
    daemon: Any = Daemon(settings.replace(access=sections.AccessSettings(open=True)))
    access = tmp_path / "access.toml"
    access.write_text('[[users.alice]]\nrole = "administrator"\n')
    with_file = daemon.settings.replace(access=sections.AccessSettings(file=str(access)))
    deletion = Act(Action.ADMINISTER, "orders")
    assert daemon._access.rules.judge("mallory", deletion).allowed

    daemon.reload(with_file)
    assert [True, False] == [daemon._access.rules.judge(user, deletion).allowed for user in ("alice", "mallory")]
    assert with_file.access == daemon.settings.access

    access.write_text('[[users.mallory]]\nrole = "boss"\n')
    with pytest.raises(ConfigError, match="boss"):
        daemon.reload(with_file)
    assert not daemon._access.rules.judge("mallory", deletion).allowed


def test_sighup_reads_the_tokens_of_http_or_changes_nothing(tmp_path: Path, settings: Settings) -> None:
    tokens = write_secret(tmp_path / "tokens", token_line("grafana", "old").encode())
    with_tokens = settings.replace(
        http=sections.HttpSettings(tokens_file=str(tokens)), access=sections.AccessSettings(open=True)
    )
    daemon: Any = Daemon(with_tokens)

    write_secret(tokens, token_line("grafana", "new").encode())
    daemon.reload(with_tokens)
    assert [None, "grafana"] == [daemon.http.access.tokens.holder(each) for each in ("old", "new")]

    write_secret(tokens, b"grafana new")
    with pytest.raises(ConfigError, match=rf"\$\.http\.tokens_file: {tokens}, line 1"):
        daemon.reload(with_tokens)
    assert daemon.http.access.tokens.holder("new") == "grafana"


async def test_presence_beyond_the_rate_of_its_user_is_not_read(settings: Settings) -> None:
    """Each one concerns all subscriptions."""
    daemon: Any = Daemon(settings)
    limits = Limits(requests_per_second=10)
    daemon._access.rules = AccessRules({"shop": (Right(Role.CONSUMER),)}, default_limits=limits)
    topic = presence_topic("local", "shop/till-3")
    for _ in range(100):
        daemon._on_presence(ClientIds(), topic, b"not presence")
    daemon._on_presence(ClientIds(), presence_topic("local", "other/till-3"), b"not presence")

    read = daemon.instruments.registry.get_sample_value("headgate_messages_malformed_total", {"reason": "presence"})
    exceeded = daemon.instruments.registry.get_sample_value(
        "headgate_quota_exceeded_total", {"quota": "requests_per_second"}
    )
    assert 20 <= read <= 23
    assert 101 == read + exceeded


async def test_leaders_learn_who_is_gone(settings: Settings) -> None:
    daemon: Any = Daemon(settings.replace(access=sections.AccessSettings(open=True)))
    heard: list[Presence] = []
    leading = SimpleNamespace(leader=SimpleNamespace(on_presence=heard.append))
    daemon._joined = SimpleNamespace(growth=SimpleNamespace(controllers=[leading]))
    gone = Presence(client_id="till-3", online=False)
    daemon._on_presence(ClientIds(), presence_topic("local", "shop/till-3"), codec.encode(gone))
    assert [("shop/till-3", False)] == [(each.client_id, each.online) for each in heard]
