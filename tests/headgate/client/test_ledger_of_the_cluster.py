"""A client compares the ledger that it reads with that of the daemons."""

import random
from pathlib import Path

import pytest

from headgate.cli.context import CommandContext
from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.errors import LedgerError, StoreUnavailableError
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH
from headgate.protocol import codec
from headgate.protocol.codec import ClusterDescription, cluster_topic
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.settings.config import ClientConfig
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore

pytestmark = pytest.mark.looptime

CLUSTER, THEIRS, OTHER = "plant", "a" * 32, "b" * 32


def client(store: FakeStore | None) -> Client:
    broker = FakeBroker()
    described = ClusterDescription(protocol=PROTOCOL_VERSION, shards=1, ledger_url="s3://lake/plant", ledger_id=THEIRS)
    broker.retained[cluster_topic(CLUSTER)] = codec.encode(described)
    return Client(
        transport=broker.transport("c"),
        store=store,
        cluster=CLUSTER,
        client_id="c",
        rng=random.Random(1),
        config=ClientConfig(CLUSTER, "mq", 1883, "file:///mine"),
    )


def ledger(ledger_id: str) -> FakeStore:
    return FakeStore(objects={IDENTITY_PATH: identity_object(ledger_id)})


@pytest.mark.parametrize("store", [ledger(THEIRS), None], ids=["its store", "no store"])
async def test_the_id_is_that_of_the_daemons(store: FakeStore | None) -> None:
    async with client(store) as mine:
        assert THEIRS == await mine.ledger_id()


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        (FakeStore(), r"file:///mine has no object ledger\.json, so it is no ledger"),
        (ledger(OTHER), f"file:///mine is another ledger, with id {OTHER}"),
    ],
    ids=["an empty folder", "another ledger"],
)
async def test_a_consumer_with_a_wrong_ledger_url_learns_both(store: FakeStore, problem: str) -> None:
    reads = Consumer(client(store), topic="orders", subscription="billing")
    with pytest.raises(LedgerError, match=f"{problem}: the daemons of cluster 'plant' use s3://lake/plant with id a"):
        await reads.__aenter__()


async def test_an_unreachable_store_is_an_error_when_the_time_to_connect_is_over() -> None:
    store = ledger(THEIRS)
    store.outage()
    reads = Consumer(client(store), topic="orders", subscription="billing", connect_timeout_seconds=5)
    with pytest.raises(StoreUnavailableError, match=r"ledger\.json of file:///mine cannot be read.*s3://lake/plant"):
        await reads.__aenter__()


async def test_an_administrator_looks_for_no_time_in_another_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no record is that late, every record would be passed over."""
    monkeypatch.setattr(Client, "from_config", lambda *_, **__: client(None))
    monkeypatch.setattr("headgate.client.admin.open_store", lambda _: ledger(OTHER))
    async with Admin(ClientConfig(CLUSTER, "mq", 1883, "file:///mine")) as admin:
        with pytest.raises(LedgerError, match="file:///mine is another ledger"):
            await admin.seek("orders", "billing", timestamp_ms=1_700_000_000_000)


async def test_a_command_looks_for_no_events_in_another_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.toml"
    file.write_text(f'cluster = "{CLUSTER}"\nbroker_host = "mq"\nbroker_port = 1\nledger_url = "file:///mine"\n')
    monkeypatch.setattr(Client, "from_config", lambda *_, **__: client(FakeStore()))

    with pytest.raises(LedgerError, match="so it is no ledger"):
        await CommandContext(file).open_store()
