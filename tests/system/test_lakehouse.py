"""Exports to Delta and Iceberg tables on a real node, killed and run at once: each record is in the table once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS, jsonl, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]
KINDS = ("delta", "iceberg")
SMALL_COMMITS = ("--commit-bytes", "1")
"""One commit for each object of the ledger."""


class Lake:
    """One table, as commands and other programs find it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self._folder = kind, folder
        self.table = str(folder / "orders") if kind == "delta" else "lake.a.orders"
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}

    def words(self, topic: str, *options: str) -> tuple[str, ...]:
        schema = str(self._folder / "schema.json")
        return ("export", topic, self.table, "--to", self.kind, "--schema", schema, *options)

    def commits(self) -> int:
        """Return how many commits have added rows, as far as files tell."""
        if self.kind == "delta":
            return len(list((self._folder / "orders/_delta_log").glob("*.json"))) - 1
        return len(list(self._folder.glob("lake/a/orders/metadata/snap-*.avro")))

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "delta":
            from deltalake import DeltaTable  # noqa: PLC0415 - half a second of each process that collects

            table = pa.table(DeltaTable(self.table).to_pyarrow_table())
        else:
            from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - likewise

            table = SqlCatalog("lake", **self.catalog).load_table("a.orders").scan().to_arrow()
        return table.select(["segment", "offset", "n"]).to_pylist()


@pytest.fixture
def lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Lake]:
    """A table of each kind, and the environment of the commands that find its catalog."""
    (tmp_path / "schema.json").write_text(json.dumps({"id": "string", "n": "long"}))
    made = {kind: Lake(kind, tmp_path) for kind in KINDS}
    for name, value in made["iceberg"].catalog.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    return made


async def produce(node: Node, topic: str, first: int, count: int) -> None:
    lines = jsonl({"id": f"k{n % 40}", "n": n} for n in range(first, first + count))
    await node.commands.succeed("produce", topic, "--key-field", "id", stdin=lines)


def require_each_once(lake: Lake, count: int) -> None:
    """Fail unless the table has the numbers 0 to ``count`` - 1, each once, at places of their own."""
    rows = lake.rows()
    assert [] == [each for each, times in Counter(row["n"] for row in rows).items() if times > 1]
    assert list(range(count)) == sorted(row["n"] for row in rows)
    assert count == len({(row["segment"], row["offset"]) for row in rows})


async def test_killed_and_concurrent_exports_store_each_record_once(node: Node, lakes: dict[str, Lake]) -> None:
    """The topic is split after a kill, and then two exports run at once for each table."""
    await node.commands.succeed("topic", "create", "lake")
    await produce(node, "lake", 0, 400)
    for kind, lake in lakes.items():
        following = await node.commands.start(kind, *lake.words("lake", *SMALL_COMMITS, "--follow"))
        await wait_until(lambda lake=lake: lake.commits() >= 1, lambda log=following: f"a commit: {log.errors()}", 60)
        await following.kill()

    await node.commands.succeed("topic", "split", "lake", "0")
    await produce(node, "lake", 400, 200)
    both = {
        kind: [
            await node.commands.start(f"{kind}-{at}", *lake.words("lake", "--subscription", "lake")) for at in range(2)
        ]
        for kind, lake in lakes.items()
    }
    for kind, exports in both.items():
        codes = [await each.ended(60) for each in exports]
        assert 0 in codes, [each.errors() for each in exports]
        assert all("another commit to" in each.errors() for code, each in zip(codes, exports, strict=True) if code)
        require_each_once(lakes[kind], 600)

    (backlog,) = (await node.commands.succeed("backlog", "lake", "lake", "--json")).document()
    assert 0 == sum(each["records"] for each in backlog["segments"])
