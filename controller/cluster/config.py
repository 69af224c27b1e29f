"""The configuration that all daemons of a cluster share: stored in ZooKeeper by the first one."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import structlog

from controller.leadership.election import ElectionsUnreachableError, Registry
from controller.leadership.policy.feature_levels import FIRST, SHARDS_GROW, join_problem, level_of, supported
from controller.leadership.session_secret import SessionSecret
from controller.settings.load import Settings
from controller.snapshots.restore import catch_up
from headgate.errors import ConfigError, LedgerError, LedgerFormatError, ObjectMissingError, StoreUnavailableError
from headgate.ledger.identity import claim_ledger_id, is_ledger_id, name_level, read_ledger_id, read_level, read_shards
from headgate.ledger.ledger import Ledger, shard_folders
from headgate.ledger.objects import IDENTITY_PATH
from headgate.model.layout import MAX_SHARDS, ShardMap
from headgate.process.background import end_tasks
from headgate.protocol.codec import ClusterDescription
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.storage.object_store import Store
from metrics import events
from shard.state.shard_state import ShardState

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
    """Have ZooKeeper's ``node`` and the ledger name the higher of their feature levels; return whether both do.

    A level never falls. ZooKeeper may name a lower one because an older copy of its node was written again, or because
    a raise, which the ledger names first, was interrupted.

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


LEDGER_WAIT_SECONDS: Final = 1.0
"""Pause between two attempts to read a ledger from which the cluster's configuration is made."""
SHARDS_REMEDY: Final = (
    "Set cluster.shards to the number of the ledger's shards (headgate ledger check), and shards in the cluster's "
    "ZooKeeper node, if it has one"
)


@dataclass(eq=False, repr=False)
class LedgerIdentity:
    """Refuses a ledger that is not the cluster's, although its URL is: a disk of this machine, or one not mounted.

    The ledger has a random id in one object, and the cluster's node in ZooKeeper has the same id.

    1. A cluster without an id takes that of the ledger at its first start. A ledger without one gets one then.
       Both are written only if absent, so of two daemons with different ledgers one is refused.
    2. A ledger with another id ends the daemon: it would write a second history.
    3. A ledger without an id, under a cluster that has one, is a fault that a mount repairs.
    """

    store: Store
    _: KW_ONLY
    url: str
    node: str
    ledger_id: str | None
    """The cluster's id; None: it has none yet."""
    claim: Callable[[str], Awaitable[str]]
    """Stores the id that is passed, if there is none, and returns what is stored."""
    agree: Callable[[], Awaitable[bool]] | None = None
    """Compares what else ZooKeeper and the ledger name, once that has been found; False: again later."""

    async def require(self) -> None:
        """Return if the store has the cluster's ledger.

        Raises:
            ConfigError: it has another one.
            LedgerError: its id is missing or unusable.
            StoreUnavailableError: the store is unreachable.
        """
        found = await read_ledger_id(self.store, self.url)
        if self.ledger_id is None:
            if found is None:
                found = await claim_ledger_id(self.store, self.url)
                log.info("ledger.identified", ledger_id=found, url=self.url)
            # Readers see an object a moment before it is durable, and ZooKeeper must not know it longer.
            await self.store.make_durable("")
            self.ledger_id = await self.claim(found)
        if found is None:
            raise LedgerError(
                f"{self.url} has no object {IDENTITY_PATH}, and the cluster's ledger has one with the id "
                f"{self.ledger_id} (ledger_id in the ZooKeeper node {self.node}). Mount the cluster's ledger. If it "
                "was moved, or lost the object, while all daemons are stopped, remove ledger_id from that node"
            )
        if found != self.ledger_id:
            raise ConfigError(
                f"{self.url} is another ledger here: its object {IDENTITY_PATH} has the id {found}, and cluster node "
                f"{self.node} in ZooKeeper has {self.ledger_id}. All daemons need one ledger, not a disk each: "
                "mount the cluster's. If it was moved while all daemons are stopped, remove ledger_id from that node"
            )
        if self.agree is not None and await self.agree():
            self.agree = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What the first daemon of a cluster fixed."""

    shards: ShardMap
    """As it was when this daemon joined; `controller.leader.daemon_shards` has the present one."""
    level: int
    """The feature level when this daemon joined."""
    session_secret: SessionSecret
    ledger: LedgerIdentity

    def describe(self, ledger_url: str, shards: ShardMap) -> ClusterDescription:
        """Return what clients need to know."""
        return ClusterDescription(
            protocol=PROTOCOL_VERSION,
            shards=shards.shards,
            earlier_shards=list(shards.counts[:-1]),
            ledger_url=ledger_url,
            ledger_id=self.ledger.ledger_id or "",
        )


async def join_cluster(
    registry: Registry, settings: Settings, node: str, store: Store, stop: asyncio.Event, observer: events.Observer
) -> ClusterConfig | None:
    """Return the configuration in ``node``, which is written if there is none; None if stopped before.

    Raises:
        ConfigError: it does not fit the settings or the ledger, or is unusable.
        LedgerError: the ledger has another format, or no id although the cluster has one.
    """
    joining = asyncio.ensure_future(_join(registry, settings, node, store, observer))
    looking = asyncio.ensure_future(_look_at_ledger(store, settings.ledger.url, observer))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({joining, looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            looking.result()  # It ends by a bug only.
        return joining.result() if joining.done() else None
    finally:
        await end_tasks(joining, looking, stopping)


async def _look_at_ledger(store: Store, url: str, observer: events.Observer) -> None:
    """Report a ledger that cannot be read while ZooKeeper is away as well: joining has not reached it yet."""
    while True:
        await asyncio.sleep(LEDGER_WAIT_SECONDS)
        with suppress(LedgerError):  # Joining reports it.
            try:
                await read_ledger_id(store, url)
            except StoreUnavailableError as error:
                observer.observe(events.StoreOperationFailed(operation="read", reason=str(error)))
            else:
                observer.observe(events.StoreOperationSucceeded(operation="read"))


async def _join(
    registry: Registry, settings: Settings, node: str, store: Store, observer: events.Observer
) -> ClusterConfig:
    digits = SessionSecret.new_digits()

    async def first() -> dict[str, Any]:
        shards = await shards_of(store, ShardMap((settings.cluster.shards,)))
        return {
            "level": await level_of_ledger(store, shards),
            "shards": shards.shards if len(shards.counts) == 1 else list(shards.counts),
            "ledger_url": settings.ledger.url,
            "session_secret": digits,
        }

    with suppress(LedgerError, StoreUnavailableError):  # `LedgerIdentity` reports them.
        await require_unshared(registry, store, settings.ledger.url)
    stored = await stored_config(registry, first, observer)
    shards, secret = read_config(stored, settings, node)
    # First: a ledger of another format must get no id.
    await require_format(store)

    async def claim(ledger_id: str) -> str:
        known = shards if stored["session_secret"] == digits else await shards_of(store, shards)
        grown = {"shards": list(known.counts), "level": max(level_of(stored), SHARDS_GROW)}
        return await registry.claim_ledger(ledger_id, **({} if known == shards else grown))

    agree = partial(agree_on_level, store, registry, node)
    known = stored.get("ledger_id")
    ledger = LedgerIdentity(store, url=settings.ledger.url, node=node, ledger_id=known, claim=claim, agree=agree)
    try:
        await ledger.require()
    except StoreUnavailableError as error:
        # Each shard compares again before it leads.
        log.warning("ledger.unidentified", reason=str(error))
    stored = await registry.cluster_config(None)
    return ClusterConfig(read_config(stored, settings, node)[0], level_of(stored), secret, ledger)


async def stored_config(
    registry: Registry, first: Callable[[], Awaitable[dict[str, Any]]], observer: events.Observer
) -> dict[str, Any]:
    """Return the cluster's configuration. If ZooKeeper has none, ``first`` makes it from the ledger, and it is stored.

    Without either this waits. Raises ConfigError: what is stored is unusable, or the ledger contradicts the settings.
    """
    reason = None
    while not (found := await registry.cluster_config(None)):
        try:
            found = await registry.cluster_config(await first())
        except StoreUnavailableError as error:
            observer.observe(events.StoreOperationFailed(operation="read", reason=str(error)))
            if reason != (reason := str(error)):
                log.warning("cluster.waits_for_ledger", reason=reason)
            await asyncio.sleep(LEDGER_WAIT_SECONDS)
        else:
            observer.observe(events.StoreOperationSucceeded(operation="read"))
            break
    return found


async def require_unshared(registry: Registry, store: Store, url: str) -> None:
    """Raise ConfigError if another cluster's daemons run on this ledger: they would take the shards from each other."""
    if (found := await read_ledger_id(store, url)) and (others := await registry.clusters_on(found)):
        advice = "Use that cluster.name, or another ledger.url. To rename a cluster, stop all its daemons first"
        raise ConfigError(f"{url} is the ledger of {' and '.join(others)} in ZooKeeper, whose daemons run. {advice}")


async def shards_of(store: Store, configured: ShardMap) -> ShardMap:
    """Return the shards of a cluster that begins to use a ledger: as this says, if it is a copy, or as ``configured``.

    Leaders need them from the first on: a name that one creates must not be a topic of a shard that is read later. A
    shard that cannot be read is reported later. Raises ConfigError (a topic has no place) or StoreUnavailableError.
    """
    found: dict[int, ShardState] = {}
    folders = await shard_folders(store)
    for shard in folders:
        with suppress(LedgerError, ObjectMissingError):
            found[shard], _ = await catch_up(Ledger(store, shard), ShardState(shard))
    counts = max((each.ids.shard_counts for each in found.values()), key=len, default=())
    known = configured if len(counts) < len(configured.counts) else ShardMap(counts)
    # Ids are unique within one number of shards.
    first = await read_shards(store)
    if first is None and any(state.ids.number > 1 for state in found.values()):
        first = max(folders) + 1
    if not counts and first not in (None, known.counts[0]):
        raise ConfigError(f"cluster.shards is {known.shards}, and the ledger has {first} shards. {SHARDS_REMEDY}")
    for shard, state in found.items():
        if (problem := known.misplaced(shard, state.topics)) is not None:
            raise ConfigError(f"cluster.shards is {known.shards}, but {problem}. {SHARDS_REMEDY}")
    return known


async def require_format(store: Store) -> None:
    """Raise LedgerFormatError if another version of headgate wrote the ledger, judged by the newest chunk of one shard.

    A damaged chunk is no other format, and is reported by its shard; so is a store that is unreachable.
    """
    try:
        found = await shard_folders(store)
        ledger = Ledger(store, found[0] if found else 0)
        _, numbers = await ledger.end()
        if numbers:
            await ledger.header(numbers[-1])
    except LedgerFormatError:
        raise
    except (LedgerError, ObjectMissingError, StoreUnavailableError) as error:
        log.warning("ledger.format_unknown", reason=str(error))


def read_config(config: dict[str, Any], settings: Settings, node: str) -> tuple[ShardMap, SessionSecret]:
    """Return what a daemon with ``settings`` takes from ``node``. Raises ConfigError: it must not join."""
    if not (level := level_of(config)):
        raise ConfigError(f"ZooKeeper node {node}: level is {config['level']!r}; restore the feature level that it was")
    if (problem := join_problem(level, version("headgate-client"), supported())) is not None:
        raise ConfigError(problem)
    shards = ShardMap.read(config.get("shards"))
    if shards is None:
        raise ConfigError(
            f"ZooKeeper node {node}: {config.get('shards')!r} is neither a number of shards from 1 to {MAX_SHARDS} nor "
            "a list of such numbers that rise; restore what the cluster had"
        )
    if settings.cluster.shards not in shards.counts:
        log.warning("cluster.shards_differ", configured=settings.cluster.shards, stored=list(shards.counts))
    if config.get("ledger_url") != settings.ledger.url:
        raise ConfigError(
            f"ledger.url is {settings.ledger.url!r}, but cluster {settings.cluster.name!r} uses "
            f"{config.get('ledger_url')!r}: a cluster must use a single ledger. If it was moved while all daemons were "
            f"stopped, change ledger_url in the ZooKeeper node {node}, and remove ledger_id"
        )
    if not is_ledger_id(ledger_id := config.get("ledger_id")) and ledger_id is not None:
        raise ConfigError(
            f"ZooKeeper node {node}: ledger_id is unusable; remove it, and the first daemon writes that of its ledger"
        )
    try:
        secret = SessionSecret(str(config.get("session_secret")))
    except ValueError as error:
        raise ConfigError(
            f"ZooKeeper node {node}: session_secret is missing or unusable ({error}); restore it, or if the cluster "
            "never had one, add the output of: openssl rand -hex 32"
        ) from None
    return shards, secret
