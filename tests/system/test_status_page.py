"""The status page in a real browser: what is shown is what the API answers, through every kind of change.

``--screenshots`` writes the pictures of README and docs/ to docs/images.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drain.protocol import CountedLedger
from headgate import Consumer, Producer, SubscriptionType
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.process.background import end_tasks
from headgate.storage.object_store import open_store
from shard.access.rules import AccessRules, Right, Role
from tests.support.fakes.drain_service import FakeDrainService
from tests.support.fakes.recording_admin import RecordingAdmin
from tests.support.samples.positioned_ledger import LedgerWithPositions
from tests.support.samples.status_documents import HOSTILE, part, subscription_summary, topic_document, topic_summary
from tests.support.servers.browser import PHONE_WIDTH, WIDTH, Browser, browser_in, needs_browser
from tests.support.servers.cluster import Cluster, Daemon
from tests.support.servers.http_server import HttpHarness
from tests.support.servers.npm_packages import npm_packages
from tests.support.servers.programs import TEST_SECONDS, get, wait_until
from web.access import HttpAccess, Tokens
from web.page.markup import count

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS), needs_browser]

AXE = Path(__file__).parent / "axe"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SUBSCRIPTION = "/topics/orders/subscriptions/billing"
PAGES = ("/", "/topics", "/subscriptions", "/topics/orders", SUBSCRIPTION)
TOKEN = "secret"
KEYS = 40
CHARTS = 3
TILES = """Object.fromEntries([...document.querySelectorAll("#totals .tiles > div")].map(each =>
    [each.querySelector("dt").innerText, each.querySelector("dd").firstChild.textContent]))"""


# The page alone


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpHarness]:
    access = HttpAccess(tokens=Tokens((("me", hashlib.sha256(TOKEN.encode()).digest()),)))
    monkeypatch.setattr("web.live_stream.INTERVAL_SECONDS", 0.2)
    async with (made := HttpHarness(access=access)).server:
        yield made


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with browser_in(tmp_path) as found:
        found.token = TOKEN
        yield found


@pytest.fixture
def axe(pytestconfig: pytest.Config) -> str:
    return (npm_packages(AXE, pytestconfig) / "node_modules" / "axe-core" / "axe.min.js").read_text()


async def test_every_page_is_accessible_in_both_color_schemes_and_on_a_phone(
    harness: HttpHarness, browser: Browser, axe: str
) -> None:
    """The token is asked for once, as the password, and serves the stream of events, too."""
    for path in PAGES:
        await browser.open(f"http://{harness.server.address}{path}")
        await browser.until("document.getElementById('live').innerText === 'live'")
        await browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        await browser.evaluate(axe)
        for width, dark in ((WIDTH, False), (WIDTH, True), (PHONE_WIDTH, False)):
            await browser.resize(width, dark=dark)
            found = await browser.evaluate(
                "axe.run().then(found => found.violations.map(each => "
                "[each.id, each.nodes.map(node => node.target + ': ' + node.failureSummary)]))"
            )
            assert found == [], f"{path}, {width} pixels, {'dark' if dark else 'light'}"
        assert await browser.evaluate("document.documentElement.scrollWidth") <= PHONE_WIDTH, path
        await browser.resize(WIDTH)

    assert browser.passwords_asked == 1
    assert [each for each in browser.messages if "axe" not in each] == [], "no script fails, and no policy is violated"


async def test_parts_change_in_place_and_keep_the_focus_and_what_is_unfolded(harness: HttpHarness, browser: Browser):
    await browser.open(f"http://{harness.server.address}/")
    await browser.until("document.getElementById('live').innerText === 'live'")
    await browser.press("Tab")
    assert await browser.evaluate("document.activeElement.className") == "skip"
    await browser.evaluate("document.querySelector('#sources details').open = true; window.here = true")
    await browser.evaluate("document.querySelector('#topics a').focus()")

    harness.source.parts = [
        part(topics=[topic_summary(records=77), topic_summary("quiet")], subscriptions=[subscription_summary()])
    ]
    await browser.until("document.getElementById('topics').innerText.includes('quiet')")
    assert await browser.evaluate("document.activeElement.innerText") == "orders"
    assert await browser.evaluate("document.querySelector('#sources details').open")
    assert await browser.evaluate("window.here"), "the page was not loaded again"


async def test_a_search_sends_one_page_of_ten_thousand_topics_at_a_permanent_address(
    harness: HttpHarness, browser: Browser
) -> None:
    topics = [topic_summary(f"meter-{number:05}") for number in range(10_000)]
    harness.source.parts = [part(topics=topics, subscriptions=[subscription_summary("meter-00777")])]
    await browser.open(f"http://{harness.server.address}/")
    await browser.evaluate("document.querySelector('[name=contains]').focus()")
    await browser.write("METER-007")
    await browser.press("Enter")
    await browser.until("location.href.endsWith('/topics?contains=METER-007') && document.readyState === 'complete'")
    assert await browser.until("document.querySelectorAll('#topics tbody tr').length") == 100
    assert await browser.text("#topics [rel=next]") == ""

    await browser.evaluate("document.querySelector('[formaction]').click()")
    await browser.until("location.pathname === '/subscriptions' && document.readyState === 'complete'")
    assert "meter-00777" in await browser.text("#subscriptions tbody")
    assert await browser.evaluate("document.querySelector('[name=contains]').value") == "METER-007"


async def test_a_record_is_shown_to_who_may_consume_and_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    known = LedgerWithPositions()
    known.ledger = Ledger(open_store(tmp_path.as_uri()), 0)
    known.value = f"{HOSTILE}<img src=x onerror=alert(1)>".encode()
    await known.write(10, 0)
    rules = AccessRules({"me": (Right(role=Role.CONSUMER),)})
    access = HttpAccess(tokens=Tokens((("me", hashlib.sha256(TOKEN.encode()).digest()),)), rules=rules)
    async with (harness := HttpHarness(access=access, ledger_url=tmp_path.as_uri())).server:
        harness.source.topics["t"] = replace(topic_document(), topic=known.description())
        await browser.open(f"http://{harness.server.address}/topics/t")
        await browser.evaluate("document.querySelector('#totals p a').click()")
        await browser.until(
            "location.pathname === '/topics/t/records' && document.querySelector('#records tbody') !== null"
        )
        shown = await browser.text("#records tbody")
        assert known.value.decode() in shown
        assert await browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
        await browser.open(f"http://{harness.server.address}/topics/t/records?key=other")
        assert await browser.text("#records") == "No such record."
        await browser.open(f"http://{harness.server.address}/events")
        assert "created by anonymous, segments: 2" in await browser.text("#events tbody")
    assert browser.messages == []


async def test_an_action_is_shown_before_it_is_confirmed(browser: Browser) -> None:
    rules = AccessRules({"me": (Right(role=Role.ADMINISTRATOR),)})
    access = HttpAccess(tokens=Tokens((("me", hashlib.sha256(TOKEN.encode()).digest()),)), rules=rules)
    async with (harness := HttpHarness(access=access)).server:
        sent: list[Any] = []
        harness.connect = lambda user: RecordingAdmin(user, sent, None)
        await browser.open(f"http://{harness.server.address}/topics/orders")
        await browser.evaluate("document.querySelector('[href^=\"/actions/split\"]').click()")
        await browser.until("document.querySelector('#action [name=segment]') !== null")
        assert await browser.evaluate("document.querySelector('#action [name=topic]').value") == "orders"
        await browser.evaluate("document.querySelector('#action [name=segment]').focus()")
        await browser.write("2")
        await browser.press("Enter")
        await browser.until("document.querySelector('#action button')?.innerText === 'Confirm: split'")
        assert (sent, "segment 2, with 400 records" in await browser.text("#action")) == ([], True)
        await browser.evaluate("document.querySelector('#action button').click()")
        await browser.until("document.getElementById('action')?.innerText.includes('Done.')")
        assert [(user, request.segment) for user, request in sent] == [("me", 2)]
        given = "topic=orders&subscription=billing&key=alice&drop=true"
        await browser.open(f"http://{harness.server.address}/actions/resume?{given}")
        assert "3 parked records of key alice are given up" in await browser.text("#action")
        await browser.evaluate("document.querySelector('#action button').click()")
        await browser.until("document.getElementById('action')?.innerText.includes('Done.')")
        assert (sent[1][1].key, sent[1][1].drop) == (b"alice", True)
    assert browser.messages == []


async def test_a_stream_that_ends_and_a_source_without_answer_are_said(harness: HttpHarness, browser: Browser) -> None:
    await browser.open(f"http://{harness.server.address}{SUBSCRIPTION}")
    await browser.until("document.getElementById('live').innerText === 'live'")
    harness.source.problem = "daemon 'two' did not answer"
    await browser.until("document.getElementById('live').innerText === 'stale'")
    assert await browser.text("#stale") == "Stale: daemon 'two' did not answer"

    harness.source.problem = None
    await browser.until("document.getElementById('live').innerText === 'live'")
    await harness.server.__aexit__(None, None, None)
    assert "has sent nothing for" in await browser.until("document.getElementById('stale').innerText")


# A cluster


class Shop:
    """A topic with a producer and three consumers, which acknowledge once they may."""

    def __init__(self, cluster: Cluster) -> None:
        self.may_acknowledge = asyncio.Semaphore(0)
        """Each release lets a consumer acknowledge one record."""
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._cluster.commands.succeed("topic", "create", "orders", "--segments", "4")
        await self._cluster.commands.succeed("topic", "create", "clicks")
        for name in ("ada", "bob", "cyd"):
            self._tasks.append(asyncio.get_running_loop().create_task(self._consume(name)))
        await self.produce(300)

    async def produce(self, records: int) -> None:
        async with Producer(self._cluster.client_config()) as producer:
            for number in range(records):
                await producer.send("orders", f"key-{number % KEYS}".encode(), b"x" * 50)
                await producer.send("clicks", str(number).encode(), b"x")
            await producer.flush()

    def let_acknowledge(self, records: int) -> None:
        """Let the consumers acknowledge so many more records."""
        for _ in range(records):
            self.may_acknowledge.release()

    async def close(self) -> None:
        await end_tasks(*self._tasks)

    async def _consume(self, name: str) -> None:
        config = self._cluster.client_config()
        options: dict[str, Any] = {"type": SubscriptionType.STREAM, "start": "earliest", "name": name}
        async with Consumer(config, topic="orders", subscription="billing", **options) as consumer:
            async for record in consumer:
                await self.may_acknowledge.acquire()
                await consumer.acknowledge(record)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, shards=2) as made:
        await made.start_servers()
        await asyncio.gather(made.start_daemon("first"), made.start_daemon("second"))
        yield made


@pytest.fixture
async def shop(cluster: Cluster) -> AsyncIterator[Shop]:
    made = Shop(cluster)
    try:
        yield made
    finally:
        await made.close()


async def document(daemon: Daemon, path: str) -> Any:
    status, body = await get(daemon.http_address, f"/api/v1{path}")
    assert status == 200, body
    return json.loads(body)


async def leader_and_other(cluster: Cluster) -> tuple[str, str]:
    """Return the names of the daemon that leads the topic, and of the other one, once both know it.

    Without Spark the leader is degraded. So is the other one, if it leads the other shard.
    """

    async def ready() -> bool:
        answers = [await get(each.http_address, "/api/v1/topics/orders") for each in cluster.daemons.values()]
        if [status for status, _ in answers] != [200, 200]:
            return False
        _, health = await cluster.daemons[json.loads(answers[0][1])["daemon"]].health()
        return health.get("state") == "degraded"

    await wait_until(ready, "both daemons know the leader of the topic, which is degraded without Spark")
    found = await document(cluster.daemons["first"], "/topics/orders")
    return found["daemon"], "second" if found["daemon"] == "first" else "first"


async def agrees(browser: Browser, daemon: Daemon) -> dict[str, Any]:
    """Wait until the page of the subscription shows what the API answers; return the answer."""
    answer: dict[str, Any] = {}
    shown: dict[str, str] = {}

    async def same() -> bool:
        nonlocal answer, shown
        answer = await document(daemon, SUBSCRIPTION)
        shown = await browser.evaluate(TILES)
        blocked = await browser.evaluate("document.querySelectorAll('#layout > div > svg.wide > .blocked').length")
        summary = answer["summary"]
        expected = (count(summary["backlog_records"]), count(summary["blocked_segments"]))
        return (shown.get("Backlog"), shown.get("Blocked"), str(blocked)) == (*expected, expected[1])

    await wait_until(same, lambda: f"the page shows {answer.get('summary')}: it shows {shown}")
    return answer


async def take_pictures(browser: Browser, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    for dark in (False, True):
        await browser.resize(960, 860, dark=dark)
        await browser.screenshot(IMAGES / f"{name}-{'dark' if dark else 'light'}.png")
    await browser.resize(WIDTH)


async def take_all_pictures(browser: Browser, root: str, shop: Shop) -> None:
    await browser.open(f"{root}{SUBSCRIPTION}")
    await browser.until("document.getElementById('live').innerText === 'live'")
    await take_pictures(browser, "status-subscription")
    await browser.open(f"{root}/")
    await work_for_a_while(shop, browser)
    await take_pictures(browser, "status-overview")


async def work_for_a_while(shop: Shop, browser: Browser) -> None:
    """Produce and acknowledge unevenly, until the charts show something."""
    await browser.until("document.querySelector('#rates .line') !== null")
    for records in (20, 60, 150, 90, 240, 120, 60, 30):
        await shop.produce(records)
        shop.let_acknowledge(records // 2)
        seen = await browser.evaluate("document.querySelector('#rates .line').getAttribute('d')")
        await browser.until(f"document.querySelector('#rates .line').getAttribute('d') !== '{seen}'")


async def spark_of(cluster: Cluster) -> FakeDrainService:
    spark = FakeDrainService()
    ledger_id = await read_ledger_id(open_store(cluster.ledger_url), cluster.ledger_url)
    spark.watermark, spark.ledger = None, CountedLedger(ledger_id or "", cluster.ledger_url)
    return spark


async def test_the_page_of_a_daemon_follows_a_split_a_drain_and_a_killed_leader(
    cluster: Cluster, shop: Shop, browser: Browser, pytestconfig: pytest.Config
) -> None:
    """The daemon that is asked does not lead the topic. Spark is down at first."""
    await shop.open()
    leader, other = await leader_and_other(cluster)
    daemon = cluster.daemons[other]
    browser.token = daemon.http_address.token
    root = f"{'http' if daemon.http_address.ca_file is None else 'https'}://{daemon.http_address}"
    await browser.open(f"{root}{SUBSCRIPTION}")
    await browser.until("document.getElementById('live').innerText === 'live'")
    await agrees(browser, daemon)
    for segment in ("0", "2"):
        await cluster.commands.succeed("topic", "split", "orders", segment)
    await shop.produce(100)
    answer = await agrees(browser, daemon)
    assert (answer["daemon"], answer["summary"]["blocked_segments"]) == (leader, 4)
    assert "segments 4, 5 wait for segment 0. Segment 0 (0000-3fff) has" in await browser.text("#waiting")
    assert "Drain checks are not answered" in await browser.text("#waiting")

    await browser.open(f"{root}/")
    await browser.until("document.getElementById('live').innerText === 'live'")
    totals = (await document(daemon, "/cluster"))["totals"]
    shown = await browser.evaluate(TILES)
    assert shown["Segments"] == f"{totals['active_segments']} active"
    assert (shown["Blocked"], shown["Consumers"]) == ("4", "3")
    assert f"degraded drain of {leader}" in await browser.text("#problems")
    assert {leader, other} == set(
        await browser.evaluate("[...document.querySelectorAll('#daemons tbody th')].map(each => each.innerText)")
    )

    spark = await spark_of(cluster)
    async with await asyncio.start_unix_server(spark.serve, path=cluster.spark.socket):
        shop.let_acknowledge(120)
        await browser.until(f"!document.getElementById('problems').innerText.includes('drain of {leader}')")
        if pytestconfig.getoption("screenshots"):
            await take_all_pictures(browser, root, shop)
        await browser.open(f"{root}{SUBSCRIPTION}")
        await browser.until("document.getElementById('live').innerText === 'live'")

        topic = (await cluster.commands.succeed("topic", "describe", "orders", "--json")).document()
        spark.ends = {each["segment"]: each["next_offset"] for each in topic["segments"]}
        spark.drained = frozenset({0, 2})
        shop.let_acknowledge(1000)
        await browser.until(
            "document.querySelector('#drained summary')?.innerText === '2 drained segments, folded away'"
        )
        assert (await agrees(browser, daemon))["summary"]["blocked_segments"] == 0

        await cluster.kill(leader)
        await browser.until("document.getElementById('live').innerText === 'stale'")
        await browser.until("document.getElementById('live').innerText === 'live'")
        assert (await agrees(browser, daemon))["daemon"] == other
        await browser.open(f"{root}/")
        await browser.until(f"document.querySelectorAll('#rates .line').length === {CHARTS}")
        await spark.hang_up()

    await cluster.kill(other)
    assert "has sent nothing for" in await browser.until("document.getElementById('stale').innerText")
    assert browser.messages == []
