"""Whether a daemon can write to the store is known at its start, and while it leads nothing."""

import asyncio
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from controller.connections.store import FAILING_INTERVAL_SECONDS, PROBE_INTERVAL_SECONDS, probe_writes
from headgate.storage.object_store import PROBE_TIMEOUT_SECONDS, LocalStore, write_problem
from metrics import events
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.recording_observer import RecordingObserver


@pytest.mark.real_time
async def test_a_folder_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    problem = await write_problem(LocalStore(tmp_path))

    assert "Operation not permitted" in problem
    assert "hard links" in problem


async def test_a_store_that_replaces_objects_is_named() -> None:
    store = FakeStore()

    async def put(path: str, data: bytes) -> None:
        store.objects[path] = data

    store.create = put  # type: ignore[method-assign]
    assert "a second write replaced an object" in str(await write_problem(store))
    assert {} == store.objects


@pytest.mark.parametrize("fault", ["unavailable", "unknown_lost", "repeated"])
async def test_a_store_that_works_has_no_problem_and_keeps_no_object(fault: str) -> None:
    store = FakeStore()
    assert await write_problem(store) is None
    store.fail_next(fault)  # type: ignore[arg-type]
    assert (fault == "repeated") is (await write_problem(store) is None)
    assert {} == store.objects


async def test_a_store_that_hangs_is_a_problem_in_time() -> None:
    store, observer = FakeStore(), RecordingObserver()
    store.freeze()
    probing = asyncio.create_task(probe_writes(store, observer, lambda: True))
    await asyncio.sleep(PROBE_TIMEOUT_SECONDS + 1)
    probing.cancel()

    reason = "the store did not complete a write within 10 s"
    assert [events.StoreOperationFailed(operation="create", reason=reason)] == observer.events


async def test_a_daemon_that_leads_nothing_learns_that_writes_fail_and_that_they_succeed_again() -> None:
    store, observer = FakeStore(), RecordingObserver()

    def failing() -> bool:
        return isinstance(observer.events[-1], events.StoreOperationFailed)

    probing = asyncio.create_task(probe_writes(store, observer, failing))
    await asyncio.sleep(1)
    assert [events.StoreOperationSucceeded(operation="create")] == observer.events
    store.outage()
    with capture_logs() as logs:
        await asyncio.sleep(2 * PROBE_INTERVAL_SECONDS)
        assert failing()
        store.outage(False)
        await asyncio.sleep(FAILING_INTERVAL_SECONDS)
    assert not failing()
    assert ["store.not_writable", "store.writable"] == [line["event"] for line in logs]
    probing.cancel()
