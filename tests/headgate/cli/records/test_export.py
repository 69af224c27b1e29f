"""`headgate export`: what it prints, what it reports to its subscription, and what it refuses before it reads."""

import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from headgate import SubscriptionType
from headgate.errors import NoLeaderError
from headgate.lakehouse.exporter import Exporter
from headgate.protocol.requests import CreateSubscription, SeekSubscription
from headgate.views.topics import TopicInfo
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, InProcessContext, subscription


@pytest.fixture(autouse=True)
def described(stored: FakeCluster) -> None:
    """A topic with four records, which no leader changes."""
    source = stored.source
    assert source is not None

    async def describe() -> TopicInfo:
        return source.description

    stored.topics["orders"] = source.description
    stored.source = replace(source, ledger_id="0123456789abcdef" * 2, describe=describe)


def test_records_are_exported_once_and_the_subscription_follows(invoke: Invoke, cluster: FakeCluster, tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"n": "double"}')
    words = ("export", "orders", f"{tmp_path}/lake", "--to", "parquet", "--schema", str(schema))
    first = invoke(*words, "--subscription", "lake", "--json")

    assert first.exit_code == 0, first.stderr
    assert json.loads(first.stdout) == {
        "topic": "orders",
        "table": f"{tmp_path}/lake",
        "records": 4,
        "commits": 1,
        "unfit": 4,
        "first_unfit": "segment 0, offset 0",
        "without_timestamp": 0,
        "next_offsets": {"0": 3, "1": 1},
        "pruned": {},
    }
    assert "" == first.stderr
    assert invoke("export", "orders", f"{tmp_path}/other", *words[3:]).stderr == (
        "exported 4 records in 1 commit; only in column value: 4 values that the schema does not fit, "
        "first segment 0, offset 0\n"
    )
    assert cluster.calls == [
        CreateSubscription("orders", "lake", SubscriptionType.QUEUE, "", start="earliest", if_absent=True, topic_id=1),
        SeekSubscription("orders", "lake", token="", positions=[(0, 3), (1, 1)], history=[(3, 0)], topic_id=1),
    ]
    assert [b"0.0", b"0.1", b"0.2", b"1.0"] == sorted(pq.read_table(tmp_path / "lake/data")["value"].to_pylist())
    assert invoke(*words, "--skip-pruned").stderr == "exported 0 records in 0 commits\n"


def test_it_follows_through_an_outage_and_moves_the_subscription_only_behind_new_records(
    invoke: Invoke, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, plan = list[float](), Exporter.plan

    async def pause(_: InProcessContext, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    async def planned(self: Exporter) -> Any:
        if len(pauses) == 1:
            raise NoLeaderError("no leader")
        return await plan(self)

    monkeypatch.setattr(InProcessContext, "pause", pause)
    monkeypatch.setattr(Exporter, "plan", planned)
    words = ("export", "orders", f"{tmp_path}/lake", "--to", "parquet", "--subscription", "lake")
    result = invoke(*words, "--follow", "--interval", "5")

    assert (130, [5.0] * 3) == (result.exit_code, pauses)
    waits = "headgate: exported 4 records\nheadgate: waiting 5 s: no leader\nexported 4 records in 1 commit\n"
    assert waits == result.stderr
    assert [CreateSubscription, SeekSubscription] == [*map(type, cluster.calls)]


def test_the_subscription_moves_in_the_segments_that_are_left_at_the_end(
    invoke: Invoke, cluster: FakeCluster, tmp_path: Path
) -> None:
    _, kept = cluster.topics["orders"].segments
    cluster.topics["orders"] = msgspec.structs.replace(cluster.topics["orders"], segments=[kept])

    assert invoke("export", "orders", f"{tmp_path}/lake", "--to", "parquet", "--subscription", "lake").exit_code == 0
    assert cluster.calls[-1] == SeekSubscription(
        "orders", "lake", token="", positions=[(1, 1)], history=[(3, 0)], topic_id=1
    )


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("lake", "--to", "csv"), 2, "'csv' is not one of 'delta', 'iceberg', 'parquet'"),
        (("lake",), 2, "Missing option '--to'"),
        (("lake", "--to", "delta", "--commit-bytes", "0"), 2, "0 is not in the range x>=1"),
        (("lake", "--to", "delta", "--interval", "5"), 2, "--interval requires --follow"),
        (("lake", "--to", "delta", "--schema", "schema.json"), 1, "schema.json: the schema has field 'n' of type "),
        (("lake", "--to", "delta", "--schema", "broken.json"), 1, "broken.json is not a JSON object of names and ty"),
        (("lake", "--to", "parquet", "--partition-by", "day"), 1, "needs a Delta or Iceberg table"),
        (("lake.orders", "--to", "iceberg"), 1, "'lake.orders' is not CATALOG.NAMESPACE.TABLE"),
        (("absent.lake.orders", "--to", "iceberg"), 1, "pyiceberg has no URI of a catalog 'absent'"),
        (("/proc/lake", "--to", "delta"), 1, "Delta table /proc/lake: "),
    ],
)
def test_what_cannot_work_is_refused_before_a_record_is_read(
    words: tuple[str, ...],
    code: int,
    reason: str,
    invoke: Invoke,
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text('{"n": "int"}')
    Path("broken.json").write_bytes(b'{"n": "\xff"}')
    result = invoke("export", "orders", *words, "--subscription", "lake")

    assert (result.exit_code, cluster.calls) == (code, [])
    assert reason in result.stderr
    assert 1 == result.stderr.count("\n")


def test_a_subscription_that_programs_read_is_refused(invoke: Invoke, cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.subscriptions.append(subscription("orders", "work"))
    result = invoke("export", "orders", f"{tmp_path}/lake", "--to", "parquet", "--subscription", "work")

    assert result.exit_code == 1
    assert "subscription 'work' is read by reader-1: choose a name" in result.stderr


def test_a_missing_library_is_named_with_what_installs_it(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headgate.lakehouse.delta", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    result = invoke("export", "orders", "lake", "--to", "delta")

    assert result.exit_code == 1
    assert "export --to delta needs deltalake: python3 -m pip install 'deltalake>=" in result.stderr
