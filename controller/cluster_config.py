"""The configuration that all daemons of a cluster share: stored in ZooKeeper by the first one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from controller.backup.copy import shard_folders
from controller.leadership.election import Elections
from controller.leadership.session_secret import SessionSecret
from controller.settings.load import Settings
from controller.settings.sections import MAX_SHARDS
from headgate.errors import ConfigError, StoreUnavailableError
from headgate.storage.object_store import Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What the first daemon of a cluster fixed."""

    shards: int
    session_secret: SessionSecret


async def join_cluster(
    elections: Elections, settings: Settings, node: str, stop: asyncio.Event
) -> ClusterConfig | None:
    """Return the configuration in ``node``, which is written if there is none; None if stopped before.

    Raises ConfigError: it does not fit the settings, or is unusable.
    """
    wanted = {
        "shards": settings.cluster.shards,
        "ledger_url": settings.ledger.url,
        "session_secret": SessionSecret.new_digits(),
    }
    joining = asyncio.ensure_future(elections.cluster_config(wanted))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return _read(joining.result(), settings, node) if joining.done() else None
    finally:
        joining.cancel()
        stopping.cancel()


async def require_shards(store: Store, shards: int) -> None:
    """Raise ConfigError if the ledger has more than ``shards`` shards: their topics would be lost to clients.

    This happens to a new cluster on a copy of a ledger. A store that is unreachable is reported later.
    """
    try:
        found = await shard_folders(store)
    except StoreUnavailableError:
        return
    if found and found[-1] >= shards:
        raise ConfigError(
            f"cluster.shards is {shards}, but the ledger has shard {found[-1]}: it was written by a cluster with more "
            "shards. Use the number of that cluster, and another cluster.name if this one was fixed in ZooKeeper",
        )


def _read(config: dict[str, object], settings: Settings, node: str) -> ClusterConfig:
    shards = config.get("shards")
    if type(shards) is not int or not 1 <= shards <= MAX_SHARDS:
        raise ConfigError(
            f"ZooKeeper node {node}: {shards!r} is not a number of shards from 1 to {MAX_SHARDS}; "
            "restore the number with which the cluster was started"
        )
    if shards != settings.cluster.shards:
        log.warning("cluster.shards_differ", configured=settings.cluster.shards, fixed_at_first_start=shards)
    if config.get("ledger_url") != settings.ledger.url:
        raise ConfigError(
            f"ledger.url is {settings.ledger.url!r}, but cluster {settings.cluster.name!r} uses "
            f"{config.get('ledger_url')!r}: a cluster must use a single ledger. If it was moved while all daemons were "
            f"stopped, change ledger_url in the ZooKeeper node {node}",
        )
    try:
        secret = SessionSecret(str(config.get("session_secret")))
    except ValueError as error:
        raise ConfigError(
            f"ZooKeeper node {node}: session_secret is missing or unusable ({error}); restore it, or if the cluster "
            "never had one, add the output of: openssl rand -hex 32"
        ) from None
    return ClusterConfig(shards, secret)
