"""Newest records over HTTP, from a ledger in a folder: who sees them, which ones, and what becomes of their bytes."""

import hashlib
import json
from xml.etree import ElementTree as ET

import aiohttp
import msgspec
import pytest

from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.model.layout import segment_hash
from headgate.storage.object_store import open_store
from shard.access.rules import AccessRules, Right, Role
from tests.headgate.reading.test_ledger_events import created, ledger, seek
from tests.support.samples.positioned_ledger import LedgerWithPositions
from tests.support.samples.status_documents import HOSTILE, topic_document
from tests.support.servers.http_server import HttpHarness
from trials.compaction import compact
from web import stored_records
from web import stored_records as own_loop
from web.access import HttpAccess, Tokens
from web.api.documents import RecordDocument, RecordsDocument
from web.api.query import Query
from web.page.asked_pages import records_page
from web.stored_records import shown

pytestmark = pytest.mark.real_time

RULES = AccessRules({name: (Right(role=Role(name), topics=("t",)),) for name in ("consumer", "observer")})
TOKENS = Tokens(tuple((name, hashlib.sha256(name.encode()).digest()) for name in ("consumer", "observer", "up")))
PATH = "/topics/t/records"


@pytest.fixture
async def harness(tmp_path):
    known = LedgerWithPositions()
    known.ledger = Ledger(open_store(tmp_path.as_uri()), 0)
    for number, steps in enumerate([(0, 1, 0), (1,), (0, 0, 1)]):
        await known.write(10 + number, *steps)
    made = HttpHarness(access=HttpAccess(tokens=TOKENS, rules=RULES), ledger_url=tmp_path.as_uri())
    made.known = known
    made.source.topics["t"] = msgspec.structs.replace(topic_document(), topic=known.description())
    async with made.server:
        yield made


async def found(harness, query="", token="consumer"):
    status, _, text = await harness.get(f"/api/v1{PATH}{query}", Authorization=f"Bearer {token}")
    answer = json.loads(text)
    return answer["error"] if status != 200 else [(each["segment"], each["offset"]) for each in answer["records"]]


async def test_the_newest_records_of_all_segments_of_one_and_of_a_key(harness):
    newest = [(1, 2), (0, 3), (0, 2), (1, 1), (0, 1), (1, 0), (0, 0)]

    assert await found(harness) == newest
    assert await found(harness, "?last=3") == newest[:3]
    assert await found(harness, "?segment=0") == [each for each in newest if each[0] == 0]
    of_key = int(segment_hash(b"k1") > 32767)
    assert await found(harness, "?key=azE%3D&key_encoding=base64") == await found(harness, "?key=k1")
    assert await found(harness, "?key=k1") == [each for each in newest if each[0] == of_key and each[1] % 2] != []
    await compact(harness.known.ledger, 1, 2)
    assert await found(harness, "?segment=1") == [(1, 2), (1, 1), (1, 0)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?last=101", "last is '101'; give a number from 1 to 100"),
        ("?segment=x", "segment is 'x'; give a number"),
        ("?segment=9", "topic 't' has no segment 9; it may have been pruned"),
        ("?key=x&key_encoding=base64", "'x' is not base64: "),
        ("?limit=5", "there is no parameter 'limit' here"),
    ],
)
async def test_a_wrong_question_is_answered_with_what_would_be_right(harness, query, message):
    assert (await found(harness, query)).startswith(message)
    assert (await harness.get(f"{PATH}{query}", Authorization="Bearer consumer"))[0] == 400


@pytest.mark.parametrize("root", ["/api/v1", ""])
async def test_records_need_a_token_whose_holder_may_consume_the_topic(harness, root):
    async def status(topic="t", **headers):
        return (await harness.get(f"{root}/topics/{topic}/records", **headers))[0]

    assert [await status(), await status(Authorization="Bearer x")] == [401, 401]
    assert [await status(Authorization=f"Bearer {name}") for name in ("consumer", "observer", "up")] == [200, 403, 403]
    assert await status("orders", Authorization="Bearer consumer") == 403
    harness.peer_token = "peer.x"
    assert await status(Authorization="Bearer peer.x") == 403 if root else 401
    for access in (HttpAccess(), HttpAccess(rules=RULES), HttpAccess(tokens=TOKENS)):
        harness.server.access = access
        assert await status(Authorization="Bearer consumer") == 403, "without tokens, or without rights"


async def test_no_stream_of_events_contains_records(harness):
    assert "data-events" not in (await harness.get(PATH, Authorization="Bearer consumer"))[2]
    url = f"http://{harness.server.address}/live?page={PATH}"
    headers = {"Authorization": "Bearer consumer"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
        assert b"there is no page" in await response.content.readuntil(b"\n\n")


async def test_a_large_object_is_not_read_and_the_answer_says_that_records_are_missing(harness, monkeypatch):
    await compact(harness.known.ledger, 1, 2)
    monkeypatch.setattr(stored_records, "OBJECT_BYTES", 10)

    assert await found(harness) == [(1, 2), (0, 3), (0, 2)]
    monkeypatch.setattr(stored_records, "MAX_BYTES", 1)
    assert await found(harness) == [], "the manifest was read"
    assert "headgate read prints all records" in (await harness.get(PATH, Authorization="Bearer consumer"))[2]


async def test_a_further_reader_is_refused_and_a_slow_one_gets_what_was_found(harness, monkeypatch):
    monkeypatch.setattr(stored_records, "MAX_SECONDS", 0.0)
    assert await found(harness) == []
    assert "headgate read prints all records" in (await harness.get(PATH, Authorization="Bearer consumer"))[2]

    monkeypatch.setattr(own_loop, "MAX_RUNNING", 0)
    async with HttpHarness(access=harness.server.access, source=harness.source).server as busy:
        harness.server.address = busy.address
        assert await found(harness) == "0 readings of the ledger are under way; try again soon"
        status, _, html = await harness.get(PATH, Authorization="Bearer consumer")
        assert (status, "data-events" in html) == (503, False), "no stream of events has this page"


def test_hostile_bytes_are_only_text_on_the_page():
    data = [shown(each) for each in (HOSTILE.encode(), b'{"a":"\xe2\x80\xae</code>"}', b"\xff\x00", b"\x1b[2J")]
    records = tuple(RecordDocument(0, at, 2**62, each, each, ((HOSTILE, each),)) for at, each in enumerate(data))
    document = RecordsDocument(as_of_ms=0, topic="t", records=records, complete=True)
    (html,) = (
        str(part) for name, part in records_page(document, Query(key=HOSTILE)).parts.items() if name == "records"
    )

    text = "".join(ET.fromstring(html).itertext())
    assert list(ET.fromstring(html).iter("script")) == []
    assert HOSTILE in text
    assert '{"a":"\\u202e</code>"}' in text
    assert ("base64 /wA=" in text, "\\u001b[2J" in text, str(2**62) in text) == (True, True, True)


def test_bytes_are_shown_as_text_or_digits_up_to_a_limit():
    assert (shown(b"a\xff").text, shown(b"a\xff").encoding) == ("Yf8=", "base64")
    long = shown(("x" + "ä" * 4000).encode())
    assert (long.text, long.encoding, long.size_bytes) == ("x" + "ä" * 2047, "utf-8", 8001)


# Events over HTTP, from a ledger in a folder: what is shown, its pages and limits, and what is left out.

PARKED = e.KeyParked(topic_id=1, subscription_id=7, key=b"alice", reason="amount of alice is negative")


@pytest.fixture
async def event_pages(tmp_path):
    chunks = [(10, [created()]), (20, [seek()]), (30, [PARKED]), (40, [created(8, "orders" + HOSTILE)])]
    await ledger(0, *chunks, store=open_store(tmp_path.as_uri()))
    async with (made := HttpHarness(ledger_url=tmp_path.as_uri())).server:
        yield made


async def found_events(event_pages, query=""):
    status, _, text = await event_pages.get(f"/api/v1/events{query}")
    document = json.loads(text)
    return (status, text) if status != 200 else ([each["at_ms"] for each in document["events"]], document["next"])


async def test_the_newest_events_come_first_and_page_by_page(event_pages):
    assert await found_events(event_pages) == ([40, 30, 20, 10], None)
    assert await found_events(event_pages, "?limit=2") == ([40, 30], 21), "the next page begins after those chunks"
    assert await found_events(event_pages, "?limit=2&before_ms=30") == ([20, 10], None)
    assert await found_events(event_pages, "?topic=orders&since_ms=20") == ([30, 20], None)
    assert [(await found_events(event_pages, query))[0] for query in ("?topic=nope", "?before_ms=x")] == [404, 400]


async def test_no_key_and_no_reason_of_a_record_is_shown_and_names_are_text(event_pages):
    for path in ("/api/v1/events", "/events"):
        _, _, text = await event_pages.get(path)
        assert ("a key was parked" in text, "alice" in text) == (True, False)
    assert "<script>alert" not in text
    _, _, text = await event_pages.get("/events?topic=orders&limit=1")
    assert "/events?topic=orders&amp;limit=1&amp;before_ms=21" in text


async def test_a_long_search_ends_where_its_time_or_its_bytes_do(event_pages, monkeypatch):
    monkeypatch.setattr(stored_records, "MAX_BYTES", 1)
    assert await found_events(event_pages) == ([], 41), "one object was read, and the next may be of the same time"
    monkeypatch.setattr(stored_records, "MAX_SECONDS", 0.0)
    assert await found_events(event_pages) == ([], 2**53)
