"""Actions over HTTP: who may do what, the dry run before, forged and hostile requests, and what the leader is sent."""

import asyncio
import hashlib
import json
import re

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from headgate.errors import NoLeaderError, RequestRejectedError
from shard.access.rules import AccessRules, Right, Role
from tests.support.fakes.recording_admin import RecordingAdmin, with_letters
from tests.support.samples.status_documents import HOSTILE
from tests.support.servers.http_server import HttpHarness
from web import bodies
from web.access import HttpAccess, Tokens
from web.actions import ACTIONS
from web.api.documents import DeadLettersDocument

pytestmark = pytest.mark.real_time

RULES = AccessRules({name: (Right(role=Role(name)),) for name in ("administrator", "consumer", "observer")})
TOKENS = Tokens(tuple((name, hashlib.sha256(name.encode()).digest()) for name in (*RULES.users, "up")))
SUBSCRIPTION = "/topics/orders/subscriptions/billing"
GIVEN = {
    "split": {"topic": "orders", "segment": 2},
    "merge": {"topic": "orders", "first": 2, "second": 3},
    "seek": {"topic": "orders", "subscription": "billing", "to": "earliest"},
    "create-topic": {"topic": "clicks", "segments": 4},
    "delete-topic": {"topic": "unused"},
    "create-subscription": {"topic": "orders", "subscription": "audit", "type": "queue", "start": "latest"},
    "delete-subscription": {"topic": "orders", "subscription": "unused"},
    "resume": {"topic": "orders", "subscription": "billing", "key": "alice", "drop": True},
    "evict": {"topic": "orders", "subscription": "billing", "consumer": "ada"},
    "transfer": {"shard": 0, "daemon": "two"},
    "maintenance": {"daemon": "one", "on": True},
}
CHANGES = {
    "split": ["segment 2, with 400 records, is sealed"],
    "merge": ["segment 2, with 400 records, is sealed", "segment 3, with 400 records, is sealed"],
    "seek": ["segment 0 moves from offset 300 to 0"],
    "create-topic": ["topic clicks is created, with 4 segments"],
    "delete-topic": ["unused is deleted, with 1600 records; its subscriptions: billing"],
    "create-subscription": ["subscription audit of orders is created, of type QUEUE, from latest"],
    "delete-subscription": ["subscription unused of orders is deleted, with its positions in 4 segments"],
    "resume": ["3 parked records of key alice are given up"],
    "evict": ["ada is removed; its segments go to other consumers: 0, 1"],
    "transfer": ["shard 0 moves from one to two"],
    "maintenance": ["daemon one is in maintenance; it transfers its shards 0 to two"],
}


@pytest.fixture
async def harness():
    made = HttpHarness(access=HttpAccess(tokens=TOKENS, rules=RULES))
    made.sent, made.error = [], None
    made.connect = lambda user: RecordingAdmin(user, made.sent, made.error)
    async with made.server:
        yield made


async def post(harness, path, body, **headers):
    headers = {"Authorization": "Bearer administrator"} | headers
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{harness.server.address}{path}", data=body, headers=headers) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize("name", GIVEN)
async def test_an_action_says_what_would_change_and_is_sent_in_the_name_of_its_user_once_confirmed(harness, name):
    path, body = f"/api/v1/actions/{name}", json.dumps(GIVEN[name])
    status, text = await post(harness, f"{path}?dry_run=true", body)
    shown = json.loads(text)
    assert (status, shown | {"of": ""}) == (200, {"action": name, "dry_run": True, "changes": CHANGES[name], "of": ""})
    ids = {"topic": "1", "subscription": "2", "consumer": "2/1699999700000", "key": "2/4"}
    names = [each for each in ids if each in GIVEN[name]]
    assert ([], ids[names[-1]] if names else "") == (harness.sent, shown["of"])

    late = json.dumps(GIVEN[name] | {"of": "7"})
    assert ((await post(harness, path, late))[0], harness.sent) == (400, []), "it was created again since"
    with capture_logs() as logs:
        status, text = await post(harness, path, json.dumps(GIVEN[name] | {"of": shown["of"]}))
    assert (status, json.loads(text)["changes"]) == (200, CHANGES[name])
    ((user, request),) = harness.sent
    seen = {each: f"{getattr(request, f'{each}_id')}" for each in names if hasattr(request, f"{each}_id")}
    assert seen == {each: ids[each] for each in seen}, "the leader compares them"
    assert 4 == getattr(request, "parking", 4)
    given = [getattr(request, field, value) for field, value in GIVEN[name].items()]
    assert (user, [each.decode() if isinstance(each, bytes) else str(each) for each in given]) == (
        "administrator",
        [str(value) for value in GIVEN[name].values()],
    )
    (entry,) = (each for each in logs if each["event"] == "http.action")
    assert (entry["user"], entry["action"], entry["outcome"]) == ("administrator", name, "done")


async def test_a_key_that_is_no_text_is_resumed_by_the_base64_that_commands_print(harness):
    given = GIVEN["resume"] | {"key": "/w==", "key_encoding": "base64"}
    status, text = await post(harness, "/api/v1/actions/resume", json.dumps(given))
    assert (status, json.loads(text)["changes"]) == (200, ["3 parked records of key /w== are given up"])
    _, _, page = await harness.get("/actions/resume?key=/w==&key_encoding=base64", Authorization="Bearer administrator")
    assert re.findall(r"<option[^>]*>[^<]*", page)[-2:] == ["<option>utf-8", "<option selected>base64"]
    assert [request.key for _, request in harness.sent] == [b"\xff"]


LETTERS = {"topic": "orders", "subscription": "billing", "through": "0/1/0:3"}


@pytest.mark.parametrize(("name", "text"), [("replay", "sent back to orders"), ("drop", "dropped")])
async def test_dead_letters_are_counted_first_and_those_that_were_seen_are_closed(harness, name, text, monkeypatch):
    with_letters(monkeypatch)
    path = f"/api/v1/actions/{name}-dead-letters"
    changes = [f"2 dead letters are {text}"]
    status, answer = await post(harness, f"{path}?dry_run=true", json.dumps(LETTERS))
    assert (status, json.loads(answer)["changes"], harness.sent) == (200, changes, [])
    for user in ("observer", "consumer"):
        status, _ = await post(harness, f"{path}?dry_run=true", json.dumps(LETTERS), Authorization=f"Bearer {user}")
        assert status == 403, "a dry run reads them"

    status, answer = await post(harness, path, json.dumps(LETTERS))
    assert (status, json.loads(answer)["changes"]) == (200, changes)
    assert {user for user, _ in harness.sent} == {"administrator"}
    created, *sent, moved = (request for _, request in harness.sent)
    assert (sent, created.subscription, moved.positions) == (["send_back"] * (name == "replay"), "closing", [(0, 3)])

    harness.sent.clear()
    harness.error = RequestRejectedError("forbidden", "may not consume topic dead")
    assert (await post(harness, path, json.dumps(LETTERS)))[0] == 403
    assert len(harness.sent) == 1, "nothing is sent back"
    with_letters(monkeypatch, kind="STREAM", parked=1)
    for way in (path, f"{path}?dry_run=true"):
        status, answer = await post(harness, way, json.dumps(LETTERS))
        assert (status, "are resumed in order" in answer) == (400, True)
    harness.error = None
    with_letters(monkeypatch, kind="STREAM")
    status, answer = await post(harness, path, json.dumps(LETTERS))
    assert (status, "headgate subscription dead-letters orders billing --drop" in answer) == (
        (400, True) if name == "replay" else (200, False)
    )
    with_letters(monkeypatch)
    monkeypatch.setattr("web.actions.MAX_SECONDS", 0)
    assert "these are too many" in (await post(harness, f"{path}?dry_run=true", json.dumps(LETTERS)))[1]


async def test_dead_letters_are_listed_to_those_who_may_consume_their_topic(harness, monkeypatch):
    with_letters(monkeypatch, number=3)
    path = f"{SUBSCRIPTION}/dead-letters"
    status, _, text = await harness.get(f"/api/v1{path}?last=2", Authorization="Bearer consumer")
    found = msgspec.json.decode(text, type=DeadLettersDocument)
    assert [(each.origin.offset, each.origin.reason, each.key.text) for each in found.letters] == [
        (offset, HOSTILE, HOSTILE) for offset in (103, 102)
    ]
    assert (status, found.total, found.complete, found.through) == (200, 3, True, "0/1/0:3")
    _, _, html = await harness.get(path, Authorization="Bearer administrator")
    assert (html.count("&lt;script&gt;alert"), "<script>alert" in html) == (6, False)
    for root in ("", "/api/v1"):
        assert (await harness.get(f"{root}{path}", Authorization="Bearer observer"))[0] == 403
    monkeypatch.setattr("web.actions.MAX_SECONDS", 0)
    assert "Newer ones were not read" in (await harness.get(path, Authorization="Bearer consumer"))[2]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestRejectedError("forbidden", "user observer may not administer topic orders"), 403),
        (RequestRejectedError("invalid", "segment 2 is not active"), 400),
        (NoLeaderError("no leader"), 503),
    ],
)
async def test_what_the_leader_refuses_is_one_clear_answer_and_is_logged(harness, error, status):
    harness.error = error
    with capture_logs() as logs:
        found, text = await post(harness, "/api/v1/actions/split", json.dumps(GIVEN["split"]))

    assert (found, json.loads(text)) == (status, {"error": str(error)})
    assert [each["outcome"] for each in logs if each["event"] == "http.action"] == [str(error)]


async def test_an_action_needs_a_token_of_a_user_of_the_access_file(harness):
    async def status(name="observer", path="/api/v1/actions/split"):
        return (await post(harness, path, json.dumps(GIVEN["split"]), Authorization=f"Bearer {name}"))[0]

    assert [await status(each) for each in ("administrator", "observer", "up", "x")] == [200, 403, 403, 401]
    assert await status("observer", "/api/v1/actions/split?dry_run=true") == 403, "it may not confirm it either"
    harness.connect = None
    assert await status("administrator") == 503
    for access in (HttpAccess(), HttpAccess(tokens=TOKENS), HttpAccess(rules=RULES)):
        harness.server.access = access
        assert [await status(), await status(path="/actions/split")] == [403, 403]


async def test_links_to_actions_are_shown_to_those_who_may(harness, monkeypatch):
    with_letters(monkeypatch)

    async def links(path, name="administrator"):
        _, _, html = await harness.get(path, Authorization=f"Bearer {name}")
        return re.findall(r'href="/actions/([a-z-]+)', html)

    found = [
        link
        for path in ("/", "/topics/orders", SUBSCRIPTION, f"{SUBSCRIPTION}/dead-letters")
        for link in await links(path)
    ]
    assert sorted(found) == sorted(ACTIONS)
    assert [await links(SUBSCRIPTION, name) for name in ("consumer", "observer", "up")] == [["seek"], [], []]
    _, _, update = await harness.get("/topics/orders", Authorization="Bearer consumer")
    assert re.findall(r'href="(/actions/[^"]+)', update) == ["/actions/create-subscription?topic=orders&amp;of=1"]
    harness.server.access = HttpAccess()
    assert await links("/topics/orders") == [], "without tokens, or without rights"


async def test_a_form_of_another_site_changes_nothing(harness):
    password = aiohttp.encode_basic_auth("me", "administrator")
    body, here = "topic=orders&segment=2", f"http://{harness.server.address}"
    for origin in ("https://evil.example", "null", f"{here}.evil.example", ""):
        for path in ("/actions/split", "/api/v1/actions/split"):
            status, text = await post(harness, path, body, Authorization=password, Origin=origin)
            assert (status, "must name this host" in text) == (403, True)
    assert harness.sent == []

    assert (await post(harness, "/actions/split", body, Authorization=password, Origin=here))[0] == 200
    assert len(harness.sent) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("split", "x", 400, "the body is no JSON object"),
        ("split", b'{"topic": "\xff"}', 400, "the body is no JSON object"),
        ("split", '{"topic": ' + "[" * 9_000, 400, "the body is no JSON object"),
        ("split", "{}", 400, "Object missing required field `topic`; fields: topic, segment"),
        ("split", '{"topic": "orders", "segment": "x"}', 400, "segment: Expected `int`"),
        ("split", '{"topic": "orders", "segment": 2, "x": 1}', 400, "Object contains unknown field `x`"),
        ("split", '{"topic": "orders", "segment": 0}', 400, "segment 0 of orders is not active; these are: 1, 2, 3"),
        ("merge", '{"topic": "orders", "first": 1, "second": 2}', 400, "segments 1 and 2 are not neighbors"),
        ("merge", '{"topic": "orders", "first": 1, "second": 1}', 400, "segments 1 and 1 are not neighbors"),
        ("create-topic", '{"topic": "orders", "segments": 1}', 400, "topic 'orders' already exists"),
        ("create-topic", '{"topic": "a/b", "segments": 1}', 400, "topic name 'a/b': use"),
        ("create-topic", '{"topic": "new", "segments": 2000}', 400, "segments: Expected `int` <= 1024"),
        ("create-subscription", json.dumps(GIVEN["create-subscription"] | {"subscription": "billing"}), 400, "subscr"),
        ("create-subscription", json.dumps(GIVEN["create-subscription"] | {"start": "noon"}), 400, "'noon' is not a"),
        ("delete-topic", '{"topic": "orders"}', 400, "it has consumers: ada of billing, bob of billing"),
        ("delete-subscription", json.dumps(GIVEN["evict"] | {"consumer": "x"}), 400, "Object contains unknown"),
        ("transfer", '{"shard": 9, "daemon": "one"}', 400, "there is no shard 9: this cluster has shards 0 to 0"),
        ("transfer", '{"shard": 0, "daemon": "x"}', 400, "no daemon 'x' is live; these are: one, two"),
        ("maintenance", '{"daemon": "x", "on": true}', 400, "no daemon 'x' is live; these are: one, two"),
        ("seek", '{"topic": "orders", "subscription": "billing", "to": "noon"}', 400, "'noon' is not a time"),
        ("evict", json.dumps(GIVEN["evict"] | {"consumer": "x"}), 400, "billing has no consumer 'x'"),
        ("resume", json.dumps(GIVEN["resume"] | {"key": ""}), 400, "key '' is not parked; these are: alice, /w== ("),
        ("resume", json.dumps(GIVEN["resume"] | {"key_encoding": "base64", "key": "?"}), 400, "'?' is not base64: "),
        ("create-subscription", json.dumps(GIVEN["create-subscription"] | {"type": "x"}), 400, "type='x': use"),
        ("splat", "{}", 404, "there is no action 'splat'; choose from split, merge"),
        ("split?dry=1", "{}", 400, "there is no parameter 'dry' here"),
        ("split", '"' + "x" * 20_000 + '"', 413, ""),
    ],
)
async def test_a_wrong_request_is_one_clear_answer(harness, path, body, status, message):
    found, text = await post(harness, f"/api/v1/actions/{path}{'' if '?' in path else '?dry_run=true'}", body)

    assert found == status
    assert status == 413 or json.loads(text)["error"].startswith(message)
    assert harness.sent == []


async def test_a_body_that_never_ends_is_given_up(harness, monkeypatch):
    monkeypatch.setattr(bodies, "READ_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection(*harness.server.address.split(":"))
    writer.write(
        b"POST /api/v1/actions/split HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer administrator\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    assert b"400" in await reader.readline()
    writer.close()


async def test_the_page_asks_for_what_is_missing_and_escapes_what_is_given(harness):
    headers = {"Authorization": "Bearer administrator"}
    status, _, html = await harness.get(f"/actions/split?topic={HOSTILE.replace('&', '%26')}", **headers)
    assert (status, "<script>alert" in html, "&lt;script&gt;alert" in html) == (200, False, True)
    status, _, html = await harness.get("/actions/split?topic=orders&segment=2", **headers)
    assert (status, 'method="post"' in html, "Confirm: split" in html) == (200, True, True)
    assert 'name="of" value="1"' in html
    status, _, html = await harness.get("/actions/split?topic=orders&segment=2&of=7", **headers)
    assert (status, "it had id 7 when it was shown, and has 1 now" in html) == (400, True), "a page of an earlier topic"
    assert "Confirm" not in (await post(harness, "/actions/split", "topic=orders&segment=2"))[1]
    status, _, html = await harness.get("/actions/split?topic=orders&segment=0", **headers)
    assert (status, 'role="alert">segment 0 of orders is not active' in html, 'value="orders"' in html) == (
        400,
        True,
        True,
    )
    assert (await harness.get("/actions/x", **headers))[0] == 404
