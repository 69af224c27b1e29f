"""The feature level of a cluster, which ZooKeeper and the ledger name. The higher one counts: a level never falls.

ZooKeeper may name a lower one because an older copy of its node was written again, or because a raise, which the
ledger names first, was interrupted.
"""

from importlib.metadata import version

import structlog

from controller.leadership.election import ElectionsUnreachableError, Registry
from controller.leadership.policy.feature_levels import FIRST, SHARDS_GROW, join_problem, level_of, supported
from headgate.errors import ConfigError
from headgate.ledger.feature_level import name_level, read_level
from headgate.ledger.ledger import shard_folders
from headgate.model.hashing import ShardMap
from headgate.storage.object_store import Store

log = structlog.get_logger(__name__)


async def level_of_ledger(store: Store, shards: ShardMap) -> int:
    """Return the level at which a cluster begins to use a ledger of ``shards``; raises StoreUnavailableError.

    A ledger without chunks gets the newest. One that names none gets the lowest that its content allows: any other one
    may be a level that older daemons of the cluster do not support.
    """
    if (level := await read_level(store)) is not None:
        return level
    if not await shard_folders(store):
        return supported()[1]
    return FIRST if len(shards.counts) == 1 else SHARDS_GROW


async def agree_on_level(store: Store, registry: Registry, node: str) -> bool:
    """Have ZooKeeper's ``node`` and the ledger name the higher of their levels; return whether both do.

    Raises:
        ConfigError: this version does not support the ledger's.
        StoreUnavailableError: the store is unreachable.
    """
    if (config := await registry.config()) is None:
        return False
    level, named = level_of(config), await read_level(store)
    if named is None or named < level:
        shards = ShardMap.read(config.get("shards"))
        await name_level(store, level, None if named or shards is None else shards.counts[0])
    elif named > level:
        if (problem := join_problem(named, version("headgate-client"), supported())) is not None:
            raise ConfigError(f"the ledger was written under a later level than node {node} has: {problem}")
        log.warning("cluster.level_restored", node=node, found=level, level=named, reason="the ledger names it")
        try:
            await registry.change_config(lambda now: now | {"level": named} if level_of(now) < named else None)
        except ElectionsUnreachableError:
            return False
    return True
