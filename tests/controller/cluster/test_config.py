"""What the first daemon of a cluster stores in ZooKeeper, and what a daemon refuses to find there."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.chunk_writer.builder import ChunkBuilder
from controller.cluster.config import ClusterConfig, LedgerIdentity, join_cluster, require_format
from controller.leadership.policy.feature_levels import supported
from controller.settings.load import Settings
from controller.settings.sections import ClusterSettings, LedgerSettings
from headgate.errors import ConfigError, LedgerError, LedgerFormatError
from headgate.ledger.identity import identity_object, name_level, present_shards, read_level
from headgate.ledger.objects import IDENTITY_PATH, chunk_folder, chunk_name, chunk_path
from headgate.model import entries as e
from headgate.model.layout import ShardMap, shard_of
from headgate.protocol.codec import device_session_id
from metrics import events
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.fakes.zookeeper import FakeZooKeeper
from tests.support.samples.object_formats import of_newer_format, of_older_format
from tests.support.waiting import until

LEDGER = "file:///ledger"
SECRET = "0123456789abcdef" * 4
STORED = {"shards": 4, "ledger_url": LEDGER, "session_secret": SECRET}
NODE = "/headgate/local/config"
OTHER_ID = "fedcba9876543210" * 2
NEWEST = supported()[1]


async def joined(
    service: FakeZooKeeper, store: FakeStore | None = None, observer: RecordingObserver | None = None, shards: int = 4
) -> ClusterConfig:
    settings = Settings(cluster=ClusterSettings(shards=shards), ledger=LedgerSettings(url=LEDGER))
    async with service.elections("a", lambda _: None) as elections:
        registry, store = elections.registry, store or FakeStore()
        before = asyncio.all_tasks()
        config = await join_cluster(registry, settings, NODE, store, asyncio.Event(), observer or RecordingObserver())
        assert asyncio.all_tasks() <= before, "it ends what it starts"
    assert config is not None
    return config


async def test_a_store_that_is_away_is_reported_while_zookeeper_is_away_too() -> None:
    service, store, observer = FakeZooKeeper(), FakeStore(), RecordingObserver()
    service.stop()
    store.outage()
    joining = asyncio.ensure_future(joined(service, store, observer))
    await until(lambda: observer.of(events.StoreOperationFailed))
    service.start()
    store.outage(False)
    await joining
    assert observer.of(events.StoreOperationSucceeded)


def chunk(shard: int, *entries: e.AnyEntry, number: int = 1) -> bytes:
    """Return a chunk that begins a term, and contains these entries."""
    builder = ChunkBuilder()
    for entry in (e.TermStarted(leader_epoch=number, instance="a"), *entries):
        builder.add(entry)
    return builder.encode(shard=shard, number=number, leader_epoch=number, at_ms=0)


DELETED_TOPIC = (e.TopicCreated(topic_id=1, topic="t", segments=1, token="t"), e.TopicDeleted(topic_id=1, token="d"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(
            ({"shards": shards}, "is neither a number of shards from 1 to 1024 nor a list")
            for shards in (10**8, 0, True, "4", None, [], [4, 4], [8, 4], [0, 4], [4, "8"])
        ),
        (
            {"level": 99},
            r"the cluster has feature level 99, and version \S+ supports levels 1 to \d+: install the vers",
        ),
        ({"level": "1"}, f"node {NODE}: level is '1'; restore the feature level"),
        ({"ledger_url": "file:///other"}, "a cluster must use a single ledger"),
        *(
            ({"session_secret": secret}, "session_secret is missing or unusable .* openssl rand -hex 32")
            for secret in (None, "", SECRET[1:], SECRET.upper(), 7)
        ),
        *(({"ledger_id": found}, f"node {NODE}: ledger_id is unusable; remove it") for found in ("", 7, SECRET)),
    ],
    ids=str,
)
async def test_an_unusable_configuration_is_refused_with_its_node(changes: dict[str, Any], reason: str) -> None:
    """An absurd number of shards would be created one by one, without serving or stopping meanwhile."""
    service = FakeZooKeeper()
    service.service_state.config = STORED | changes

    with pytest.raises(ConfigError, match=reason) as error:
        await joined(service)
    assert SECRET[1:] not in str(error.value)


async def test_all_daemons_of_a_cluster_have_one_secret() -> None:
    service, store = FakeZooKeeper(), FakeStore()
    first, second = await joined(service, store), await joined(service, store)
    other = await joined(FakeZooKeeper())

    session = device_session_id("local", 0, 1, 9)
    suffixes = {each.session_secret.suffix(session) for each in (first, second, other)}
    assert first.session_secret.suffix(session) == second.session_secret.suffix(session)
    assert len(suffixes) == 2


@pytest.mark.parametrize(
    ("stored", "named", "chunks", "expected"),
    [
        pytest.param(None, None, False, NEWEST, id="a new cluster"),
        pytest.param(None, 1, True, 1, id="ZooKeeper's data is lost while an upgrade is pending"),
        pytest.param(None, None, True, 1, id="and the ledger names none"),
        pytest.param(NEWEST, 1, True, NEWEST, id="the ledger was put back"),
        pytest.param(
            1, NEWEST, True, NEWEST, id="an older configuration was written again, or a raise was interrupted"
        ),
        pytest.param(
            1, 99, True, r"the ledger was written under a later level than node .* has feature level 99", id="later"
        ),
    ],
)
async def test_zookeeper_and_the_ledger_name_one_feature_level(stored, named, chunks, expected):
    service, store = FakeZooKeeper(), ledger_of(0) if chunks else FakeStore()
    if named:
        await name_level(store, named)
    if stored:
        service.service_state.config = STORED | {"level": stored}
    with capture_logs() as logs:
        if isinstance(expected, str):
            with pytest.raises(ConfigError, match=expected):
                await joined(service, store)
            return
        config = await joined(service, store)

    assert expected == config.level == service.service_state.config["level"] == await read_level(store)
    logged = [line for line in logs if line["event"] == "cluster.level_restored"]
    assert [(line["found"], line["level"]) for line in logged] == [(1, NEWEST)] * (stored == 1)


async def test_a_cluster_whose_configuration_is_lost_waits_for_the_ledger_that_has_it() -> None:
    service, store = FakeZooKeeper(), ledger_of(0)
    await name_level(store, 1)
    store.outage()
    observer = RecordingObserver()
    joining = asyncio.create_task(joined(service, store, observer))
    await asyncio.sleep(60)
    assert service.service_state.config is None
    assert observer.of(events.StoreOperationFailed), "/readyz names the store"
    assert not observer.of(events.StoreOperationSucceeded)

    store.outage(False)
    assert (await joining).level == 1
    assert observer.of(events.StoreOperationSucceeded)


@pytest.mark.parametrize("grown", [(2, 4), ()], ids=["with its numbers", "without them"])
async def test_a_cluster_on_a_copied_ledger_knows_its_shards_before_the_first_leader(grown: tuple[int, ...]) -> None:
    """Otherwise a leader could create a name that an older shard has, and more shards could hide the older numbers."""
    service, store, name = FakeZooKeeper(), ledger_of(3), "topic-0"
    shard = shard_of(name, 2)
    assert shard != shard_of(name, 4)
    topic = e.TopicCreated(topic_id=1, topic=name, segments=1, token="t")
    store.objects[chunk_path(shard, 1)] = chunk(shard, topic, *[e.ShardsGrown(counts=grown)] * bool(grown))
    if grown:
        assert (await joined(service, store)).shards == ShardMap(grown)
        assert service.service_state.config["shards"] == [2, 4]
    else:
        with pytest.raises(ConfigError, match=f"cluster.shards is 4, but topic '{name}' is in shard {shard}"):
            await joined(service, store)
        assert service.service_state.config is None


async def test_shards_that_were_never_led_are_shards_of_the_ledger() -> None:
    """A cluster that ended at once, or its copy, is used again with the number of shards that it was to have."""
    store = ledger_of()
    await joined(FakeZooKeeper(), store)
    store.objects[chunk_path(0, 1)] = chunk(0, *DELETED_TOPIC)
    assert ((await joined(FakeZooKeeper(), store)).shards, await present_shards(store)) == (ShardMap((4,)), 4)
    with pytest.raises(ConfigError, match=r"cluster\.shards is 3, and the ledger has 4 shards"):
        await joined(FakeZooKeeper(), store, shards=3)


@pytest.mark.parametrize("shards", [2, 8])
async def test_a_cluster_of_another_number_of_shards_than_its_ledger_is_refused(shards: int) -> None:
    """Also if each topic has its place: another one that was deleted may have had the id of a new one."""
    store = ledger_of()
    for shard in range(shards):
        store.objects[chunk_path(shard, 1)] = chunk(shard, *DELETED_TOPIC)
    with pytest.raises(
        ConfigError, match=f"cluster.shards is 4, and the ledger has {shards} shards. Set cluster.shards"
    ):
        await joined(FakeZooKeeper(), store)


@pytest.mark.parametrize(
    ("rewrite", "advice"),
    [
        pytest.param(of_older_format, "headgate does not convert ledgers: start a new cluster on an", id="older"),
        pytest.param(of_newer_format, "run the newer version of headgate that wrote it", id="newer"),
    ],
)
async def test_a_ledger_of_another_format_is_refused(rewrite: Callable[[bytes], bytes], advice: str) -> None:
    """Every shard would fail for the same reason, and the daemon would run without one."""
    store = FakeStore()
    for number in (1, 2):
        store.objects[chunk_path(2, number)] = chunk(2, number=number)
    await require_format(store)

    store.objects[chunk_path(2, 2)] = rewrite(store.objects[chunk_path(2, 2)])

    with pytest.raises(LedgerFormatError, match=rf"^{chunk_folder(2)}/0*2.parquet has format .*; {advice}"):
        await joined(FakeZooKeeper(), store)
    assert IDENTITY_PATH not in store.objects


async def test_a_damaged_chunk_or_an_unreachable_store_is_no_other_format() -> None:
    await require_format(FakeStore())
    await require_format(ledger_of(0))
    store = ledger_of(0)
    store.outage()
    await require_format(store)


async def test_daemons_with_a_disk_each_behind_one_url_are_refused() -> None:
    """Whichever comes first fixes the ledger of the cluster, also if both start at once."""
    service = FakeZooKeeper()
    first, second = FakeStore(), FakeStore()

    outcomes = await asyncio.gather(joined(service, first), joined(service, second), return_exceptions=True)

    (refused,) = [each for each in outcomes if isinstance(each, BaseException)]
    assert isinstance(refused, ConfigError)
    line = r"file:///ledger is another ledger here: its object ledger.json has the id \w{32}, and cluster node "
    assert re.match(
        line + rf"{NODE} in ZooKeeper has \w{{32}}. All daemons need one ledger, not a disk each", str(refused)
    )
    right = second if isinstance(outcomes[0], BaseException) else first
    await joined(service, right)
    with pytest.raises(LedgerError, match=rf"^{LEDGER} has no object ledger.json, .*ZooKeeper node {NODE}.*. Mount"):
        await joined(service, unmounted := FakeStore())
    assert unmounted.objects == {}


async def test_a_cluster_does_not_join_a_ledger_on_which_another_one_runs() -> None:
    service, store = FakeZooKeeper(), ledger_of(0)
    store.objects[IDENTITY_PATH] = identity_object(OTHER_ID)
    service.service_state.sharing = ("/headgate/old",)

    with pytest.raises(ConfigError, match="is the ledger of /headgate/old in ZooKeeper, whose daemons run"):
        await joined(service, store)
    assert service.service_state.config is None, "it would hold the wrong ledger"


async def test_a_ledger_without_an_id_gets_one_and_a_cluster_without_one_takes_it() -> None:
    """Those of an earlier version, a copy of a ledger, and one that was moved."""
    service, store = FakeZooKeeper(), ledger_of(0)
    service.service_state.config = dict(STORED)

    with capture_logs() as logs:
        await joined(service, store)
        await joined(service, store)

    (identified,) = [line for line in logs if line["event"] == "ledger.identified"]
    assert service.service_state.config == STORED | {"ledger_id": identified["ledger_id"]}
    assert store.objects[IDENTITY_PATH] == identity_object(identified["ledger_id"])
    moved_to = FakeStore(objects=dict(store.objects))
    service.service_state.config = dict(STORED)
    await joined(service, moved_to)
    assert service.service_state.config["ledger_id"] == identified["ledger_id"]


async def test_without_the_store_the_comparison_waits_for_the_first_term() -> None:
    service, store = FakeZooKeeper(), FakeStore()
    service.service_state.config = dict(STORED)
    store.outage()
    await joined(service, store)
    assert "ledger_id" not in service.service_state.config

    store.outage(False)
    service.service_state.config["ledger_id"] = OTHER_ID
    async with service.elections("b", lambda _: None) as elections:
        # As a term does.
        late = LedgerIdentity(store, url=LEDGER, node=NODE, ledger_id=None, claim=elections.registry.claim_ledger)
        with pytest.raises(ConfigError, match=OTHER_ID):
            await late.require()


def ledger_of(*shards: int) -> FakeStore:
    store = FakeStore()
    for shard in shards:
        store.objects[f"{chunk_folder(shard)}/{chunk_name(1)}"] = b""
    return store
