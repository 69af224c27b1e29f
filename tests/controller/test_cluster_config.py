"""What the first daemon of a cluster stores in ZooKeeper, and what a daemon refuses to find there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.cluster_config import ClusterConfig, join_cluster, require_shards
from controller.leadership.session_secret import SessionSecret
from controller.settings.load import ClusterSettings, LedgerSettings, Settings
from headgate.errors import ConfigError
from headgate.ledger.paths import chunk_folder, chunk_name
from headgate.protocol import messages as m
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.zookeeper import FakeZooKeeper

pytestmark = pytest.mark.looptime

LEDGER = "file:///ledger"
SECRET = "0123456789abcdef" * 4
STORED = {"shards": 4, "ledger_url": LEDGER, "session_secret": SECRET}
NODE = "/headgate/local/config"


async def joined(service: FakeZooKeeper) -> ClusterConfig | None:
    settings = Settings(cluster=ClusterSettings(shards=4), ledger=LedgerSettings(url=LEDGER))
    async with service.elections("a", lambda _: None) as elections:
        return await join_cluster(elections, settings, NODE, asyncio.Event())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"shards": shards}, "is not a number of shards from 1 to 1024") for shards in (10**8, 0, True, "4", None)),
        ({"ledger_url": "file:///other"}, "a cluster must use a single ledger"),
        *(
            ({"session_secret": secret}, "session_secret is missing or unusable .* openssl rand -hex 32")
            for secret in (None, "", SECRET[1:], SECRET.upper(), 7)
        ),
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
    service = FakeZooKeeper()
    first, second = await joined(service), await joined(service)
    other = await joined(FakeZooKeeper())

    assert first is not None
    assert second is not None
    assert other is not None
    session = m.device_session_id("local", 0)
    suffixes = {each.session_secret.suffix(session) for each in (first, second, other)}
    assert first.session_secret.suffix(session) == second.session_secret.suffix(session)
    assert len(suffixes) == 2
    assert first.session_secret.suffix(session) != first.session_secret.suffix(m.device_session_id("local", 1))


def test_a_secret_is_not_shown_and_its_suffix_is_fixed() -> None:
    """Another suffix would be another session: what waits in the present one would be lost."""
    secret = SessionSecret(SECRET)

    assert secret.suffix("headgate:local:shard:0") == ":3c1152b03b94618f53d27e9960a20b96"
    assert SECRET not in repr(secret) + str(vars(secret))


@pytest.mark.parametrize("found", [(), (0,), (0, 1, 2, 3)], ids=["a new ledger", "a first start", "all shards"])
async def test_a_ledger_with_at_most_the_cluster_s_shards_is_accepted(found: tuple[int, ...]) -> None:
    await require_shards(ledger_of(*found), 4)


async def test_a_ledger_with_more_shards_is_refused() -> None:
    """A new cluster on a copy of it would not find the topics of the others."""
    with pytest.raises(ConfigError, match=r"cluster.shards is 4, but the ledger has shard 7"):
        await require_shards(ledger_of(0, 7), 4)


async def test_an_unreachable_store_is_reported_by_its_shards() -> None:
    store = ledger_of(0, 7)
    store.outage()

    await require_shards(store, 4)


def ledger_of(*shards: int) -> FakeStore:
    store = FakeStore()
    for shard in shards:
        store.objects[f"{chunk_folder(shard)}/{chunk_name(1)}"] = b""
    return store
