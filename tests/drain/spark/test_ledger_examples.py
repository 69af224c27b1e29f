"""The Spark example of docs/ledger.md, on a ledger that was compacted and trimmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.documents.markdown import sections
from tests.support.samples.trimmed_ledger import trimmed_ledger

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("compacted", [5, 8])
def test_the_spark_example_returns_each_stored_record_once(
    spark: Any, compacted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = trimmed_ledger(tmp_path, compacted=compacted)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    for block in sections("ledger.md")["Spark"].fenced("python"):
        exec(block, names)

    found = [(row["segment"], row["offset"], bytes(row["value"])) for row in names["records"].collect()]
    assert known.stored == sorted(found)
