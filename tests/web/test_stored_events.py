"""Events over HTTP, from a ledger in a folder: what is shown, its pages and limits, and what is left out."""

import json

import pytest

from headgate.model import entries as e
from headgate.storage.object_store import open_store
from tests.headgate.reading.test_ledger_events import created, ledger, seek
from tests.support.samples.status_documents import HOSTILE
from tests.support.servers.http_server import HttpHarness
from web import stored_records

PARKED = e.KeyParked(topic_id=1, subscription_id=7, key=b"alice", reason="amount of alice is negative")


@pytest.fixture
async def harness(tmp_path):
    chunks = [(10, [created()]), (20, [seek()]), (30, [PARKED]), (40, [created(8, "orders" + HOSTILE)])]
    await ledger(0, *chunks, store=open_store(tmp_path.as_uri()))
    async with (made := HttpHarness(ledger_url=tmp_path.as_uri())).server:
        yield made


async def found(harness, query=""):
    status, _, text = await harness.get(f"/api/v1/events{query}")
    document = json.loads(text)
    return (status, text) if status != 200 else ([each["at_ms"] for each in document["events"]], document["next"])


async def test_the_newest_events_come_first_and_page_by_page(harness):
    assert await found(harness) == ([40, 30, 20, 10], None)
    assert await found(harness, "?limit=2") == ([40, 30], 21), "the next page begins after the chunks that were read"
    assert await found(harness, "?limit=2&before_ms=30") == ([20, 10], None)
    assert await found(harness, "?topic=orders&since_ms=20") == ([30, 20], None)
    assert [(await found(harness, query))[0] for query in ("?topic=nope", "?before_ms=x")] == [404, 400]


async def test_no_key_and_no_reason_of_a_record_is_shown_and_names_are_text(harness):
    for path in ("/api/v1/events", "/events"):
        _, _, text = await harness.get(path)
        assert ("a key was parked" in text, "alice" in text) == (True, False)
    assert "<script>alert" not in text
    _, _, text = await harness.get("/events?topic=orders&limit=1")
    assert "/events?topic=orders&amp;limit=1&amp;before_ms=21" in text


async def test_a_long_search_ends_where_its_time_or_its_bytes_do(harness, monkeypatch):
    monkeypatch.setattr(stored_records, "MAX_BYTES", 1)
    assert await found(harness) == ([], 41), "one object was read, and the next may be of the same time"
    monkeypatch.setattr(stored_records, "MAX_SECONDS", 0.0)
    assert await found(harness) == ([], 2**53)
