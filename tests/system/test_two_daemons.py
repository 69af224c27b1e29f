"""Two daemons and a producer that resumes; each is killed, frozen or asked to go while the other works."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.cluster import SESSION_SECONDS, SHARDS, Cluster, Daemon
from tests.system.programs import eventually, jsonl

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

LINES = 60_000
KEYS = 50
LONG_SESSION_SECONDS = 30.0
"""Nobody takes over from one that merely went silent while a hand-over is waited for, which takes about a second."""


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """Servers; a parameter is the length of ZooKeeper sessions."""
    async with Cluster(tmp_path, getattr(request, "param", SESSION_SECONDS)) as made:
        await made.start_servers()
        yield made


@pytest.fixture
async def pair(cluster: Cluster) -> tuple[Daemon, Daemon]:
    """A daemon that leads everything, and one that stands by; there is a topic."""
    leader = await cluster.start_daemon("first")
    await leader.until_leading()
    standby = await cluster.start_daemon("second")

    async def stands_by() -> bool:
        return (await standby.health())[0] == 200

    await eventually(stands_by, "the second daemon is ready")
    await cluster.done("topic", "create", "orders", "--segments", "4")
    return leader, standby


def loader_file(folder: Path) -> Path:
    """Return a file of `LINES` records, whose counter rises in each key."""
    file = folder / "lines.ndjson"
    file.write_bytes(jsonl({"id": f"k{n % KEYS}", "n": n} for n in range(LINES)))
    return file


async def assert_stored_once_and_in_order(cluster: Cluster) -> None:
    """Every line of the file is in the ledger, once, and behind the earlier ones of its key."""
    stored = [(key, json.loads(value)["n"]) for key, value in await cluster.stored()]

    assert list(range(LINES)) == sorted(n for _, n in stored)
    by_key: dict[bytes, list[int]] = {}
    for key, n in stored:
        by_key.setdefault(key, []).append(n)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


LOADER = ("produce", "orders", "--key-field", "id", "--name", "loader")


async def test_a_leader_killed_under_load_costs_no_line_and_doubles_none(cluster: Cluster, pair: tuple[Daemon, Daemon]):
    leader, standby = pair
    producer = await cluster.running("loader", *LOADER, str(loader_file(cluster.folder)))
    await cluster.until_stored(2000)

    await leader.running.kill()
    assert producer.process.returncode is None, "the file must be longer"

    await standby.until_leading()
    assert await producer.ended(60) == 0, producer.err.read_text()
    assert f"accepted {LINES}, stored {LINES}, failed 0" in producer.err.read_text()
    await assert_stored_once_and_in_order(cluster)


async def test_a_leader_that_froze_for_longer_than_its_session_and_woke_does_no_harm(
    cluster: Cluster, pair: tuple[Daemon, Daemon]
):
    leader, standby = pair
    producer = await cluster.running("loader", *LOADER, str(loader_file(cluster.folder)))
    await cluster.until_stored(2000)

    leader.running.signal(signal.SIGSTOP)
    assert producer.process.returncode is None, "the file must be longer"
    await standby.until_leading()
    leader.running.signal(signal.SIGCONT)

    await leader.until_leading(0)
    assert await producer.ended(60) == 0, producer.err.read_text()
    assert f"accepted {LINES}, stored {LINES}, failed 0" in producer.err.read_text()
    await assert_stored_once_and_in_order(cluster)

    # And it is of use again.
    await standby.running.kill()
    await leader.until_leading()
    await cluster.done("produce", "orders", "--key", "x", stdin=b"{}\n")
    assert len(await cluster.stored()) == LINES + 1


async def test_a_named_producer_killed_anywhere_goes_on_behind_the_last_line_that_was_stored(
    cluster: Cluster, pair: tuple[Daemon, Daemon]
):
    file = str(loader_file(cluster.folder))
    rng = random.Random(20_261)
    kills = 0
    for number in range(4):
        producer = await cluster.running(f"loader-{number}", *LOADER, file)
        await cluster.until_stored(await cluster.stored_count() + rng.randrange(1, LINES // 12))
        kills += producer.process.returncode is None
        await producer.kill()
    last = await cluster.done(*LOADER, file, seconds=60)

    assert kills == 4, "the file must be longer"
    assert "lines are stored already; going on after them" in last.err
    await assert_stored_once_and_in_order(cluster)


@pytest.mark.parametrize("cluster", [LONG_SESSION_SECONDS], indirect=True, ids=["a long session"])
async def test_sigterm_hands_everything_over_at_once(cluster: Cluster, pair: tuple[Daemon, Daemon]):
    leader, standby = pair
    loop = asyncio.get_running_loop()
    began = loop.time()

    leader.running.signal(signal.SIGTERM)
    await standby.until_leading()
    took = loop.time() - began

    assert await leader.running.ended() == 0
    assert took < LONG_SESSION_SECONDS / 2
    produced = await cluster.done("produce", "orders", "--key", "x", stdin=b"{}\n")
    assert "stored 1, failed 0" in produced.err
    assert await standby.leads() == SHARDS


async def test_a_daemon_with_another_ledger_is_refused_in_one_line(cluster: Cluster):
    await (await cluster.start_daemon("first")).until_leading()
    cluster.ledger_url += "-of-somebody-else"

    second = await cluster.start_daemon("second")

    assert await second.running.ended() == 1
    said = second.running.err.read_text()
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"headgate: ledger.url is '{cluster.ledger_url}', but cluster 'test'")
