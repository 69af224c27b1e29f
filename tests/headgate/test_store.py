"""A folder as a store, where it differs from a bucket; what both do is in tests/contract/test_store_contract.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import StoreUnavailableError
from headgate.store import LocalStore


async def test_a_folder_that_is_of_no_use_is_an_outage_for_every_operation_and_ends_with_its_cause(tmp_path: Path):
    store = LocalStore(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("in the way")

    for operation in (
        store.create("shard/1", b""),
        store.read("shard/1"),
        store.names("shard"),
        store.delete("shard/1"),
    ):
        with pytest.raises(StoreUnavailableError, match="ledger"):
            await operation

    (tmp_path / "ledger").unlink()
    await store.create("shard/1", b"back")
    assert await store.read("shard/1") == b"back"
