"""The id of the ledger: what a daemon reads, writes once, and refuses."""

import asyncio

import pytest

from controller.cluster.config import LedgerIdentity
from controller.leadership.policy.transitions import Event, Role
from headgate.errors import ConfigError, LedgerError, LedgerFormatError, StoreUnavailableError
from headgate.ledger.checksum import seal_json
from headgate.ledger.compacted import read_manifest
from headgate.ledger.identity import claim_ledger_id, identity_object
from headgate.ledger.objects import IDENTITY_PATH, ChunkRange
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore, Fault
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender
from trials.compaction import compact

ID, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2


class ClusterNode:
    """The cluster's node: the first id that is claimed is kept."""

    def __init__(self) -> None:
        self.ledger_id: str | None = None

    async def claim(self, ledger_id: str) -> str:
        self.ledger_id = self.ledger_id or ledger_id
        return self.ledger_id


def identity(store: FakeStore, node: ClusterNode, known: str | None = None) -> LedgerIdentity:
    return LedgerIdentity(store, url="s3://lake", node="/headgate/c/config", ledger_id=known, claim=node.claim)


@pytest.mark.parametrize("fault", ["unavailable", "unknown_written", "unknown_lost"])
async def test_a_failed_creation_is_read_by_the_next_attempt(fault: Fault) -> None:
    store, node = FakeStore(), ClusterNode()
    required = identity(store, node)
    store.fail_next(fault)

    if fault != "unknown_written":  # Its own object is recognized.
        with pytest.raises(StoreUnavailableError):
            await required.require()
        assert node.ledger_id is None
    await required.require()
    assert store.objects == {IDENTITY_PATH: identity_object(str(node.ledger_id))}


async def test_zookeeper_gets_no_id_that_a_power_failure_can_remove() -> None:
    store, node = FakeStore(objects={IDENTITY_PATH: identity_object(ID)}), ClusterNode()
    store.fail_next("unavailable", "make_durable")

    with pytest.raises(StoreUnavailableError):
        await identity(store, node).require()

    assert node.ledger_id is None


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        (identity_object(OTHER), ConfigError, f"^s3://lake is another ledger here: .* {OTHER}, .*/headgate/c/config"),
        (None, LedgerError, "^s3://lake has no object ledger.json"),
        (b"{", LedgerError, "ledger.json of s3://lake is damaged"),
        (identity_object(ID).replace(b"0", b"1", 1), LedgerError, "ledger.json of s3://lake is damaged: its 81 bytes"),
        (seal_json(b'{"format":2}'), LedgerFormatError, "ledger.json has format 2, .*run the newer version"),
    ],
)
async def test_any_other_ledger_is_refused(content: bytes | None, error: type[Exception], reason: str) -> None:
    store = FakeStore(objects={} if content is None else {IDENTITY_PATH: content})
    before = dict(store.objects)

    with pytest.raises(error, match=reason):
        await identity(store, ClusterNode(), known=ID).require()

    assert store.objects == before


async def test_a_standby_whose_disk_was_unmounted_writes_nothing_and_leads_when_it_is_mounted() -> None:
    """The number after the last one it has read is free on the disk below: it would begin a second history there."""
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await until(lambda: b.controller.follower.end.chunk == 1)
        b.store.objects = {}
        a.controller.post(Event.STOP_REQUESTED)

        await until(lambda: b.controller.leadership.role is Role.FAILED)
        assert "memory: has no object ledger.json" in str(b.controller.follower.fault)
        await asyncio.sleep(120)
        assert b.store.objects == {}

        b.store.objects = cluster.objects
        await until(lambda: b.leads, 61)
    assert [(1, "a"), (2, "b")] == await cluster.terms()


async def test_a_ledger_that_lost_its_id_gets_the_one_that_its_manifests_name() -> None:
    """With another id they would be refused, and with them the records of trimmed chunks."""
    ledger = LedgerInMemory(4)
    ledger.store.objects[IDENTITY_PATH] = identity_object("c" * 32)
    await compact(ledger.ledger, 1, 4)
    ledger.store.objects["manifests/shard=0000/000000000001-000000000002.json"] = b"damaged"
    del ledger.store.objects[IDENTITY_PATH]

    assert "c" * 32 == await claim_ledger_id(ledger.store, "memory:")
    assert "c" * 32 == (await read_manifest(ledger.store, 0, ChunkRange(1, 4))).ledger_id
