"""The daemon's ZooKeeper session, and its credentials, which SIGHUP reads again."""

import asyncio

from controller.leadership.election import Connected, EventHandler
from controller.leadership.zookeeper.connection import DigestUser, ZooKeeperCredentials
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.settings.files import read_zookeeper_tls
from controller.settings.load import Settings
from controller.settings.sections import ZooKeeperSettings


def elections_root(settings: Settings) -> str:
    return f"/headgate/{settings.cluster.name}"


def zookeeper_credentials(settings: ZooKeeperSettings) -> ZooKeeperCredentials:
    """Read the files that ``settings`` name. Raises ConfigError if one is unusable."""
    password = settings.password()
    user = None if settings.username is None or password is None else DigestUser(settings.username, password)
    return ZooKeeperCredentials(user, read_zookeeper_tls(settings))


def zookeeper_elections(settings: Settings, instance: str, on_event: EventHandler) -> ZooKeeperElections:
    """Return the elections of the cluster, not yet entered. Raises ConfigError if a file is unusable."""
    return ZooKeeperElections(
        settings.zookeeper.hosts,
        root=elections_root(settings),
        instance=instance,
        session_timeout_seconds=settings.zookeeper.session_timeout_seconds,
        credentials=zookeeper_credentials(settings.zookeeper),
        on_event=on_event,
    )


async def move_ledger(settings: Settings, before: str) -> None:
    """Let a cluster whose ledger was at the URL ``before``, and was moved with its ZooKeeper, use that of ``settings``.

    Each daemon compares the ledger's id. Raises HeadgateError.
    """
    connected = asyncio.Event()
    on_event: EventHandler = lambda event: connected.set() if isinstance(event, Connected) else None  # noqa: E731
    async with zookeeper_elections(settings, "move", on_event) as elections:
        await connected.wait()
        if ((await elections.registry.config()) or {}).get("ledger_url") == before:
            await elections.registry.change_config(lambda config: config | {"ledger_url": settings.ledger.url})
