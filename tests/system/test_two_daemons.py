"""Two daemons and a named producer; each is killed, frozen or stopped under load."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.servers.cluster import Cluster, Daemon
from tests.support.servers.programs import TEST_SECONDS, RunningProgram, jsonl, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

LINES = 60_000
"""Lines of the file at first; the file grows if a producer reaches its end too early."""
KEYS = 50
ATTEMPTS = 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Running servers."""
    async with Cluster(tmp_path) as made:
        await made.start_servers()
        yield made


@pytest.fixture
async def pair(cluster: Cluster) -> tuple[Daemon, Daemon]:
    """A daemon that leads every shard, a standby, and a topic."""
    leader = await cluster.start_daemon("first")
    await leader.until_leading()
    standby = await cluster.start_daemon("second")

    async def standby_ready() -> bool:
        return (await standby.health())[0] == 200

    await wait_until(standby_ready, "the second daemon is ready")
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "4")
    return leader, standby


class Loader:
    """A named producer and its file, in which the counter of each key rises."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lines = 0
        self._file = cluster.folder / "lines.ndjson"
        self._starts = 0
        self.grow()

    def grow(self) -> None:
        """Append lines to the file."""
        more = range(self.lines, self.lines + LINES)
        with self._file.open("ab") as file:
            file.write(jsonl({"id": f"k{n % KEYS}", "n": n} for n in more))
        self.lines = more.stop

    async def started(self, stored: int) -> RunningProgram:
        """Start the producer; return when ``stored`` more lines are stored, or the producer has ended."""
        until = await self.cluster.stored_count() + stored
        self._starts += 1
        producer = await self.cluster.commands.start(f"loader-{self._starts}", *LOADER, str(self._file))

        async def reached() -> bool:
            return producer.returncode is not None or await self.cluster.stored_count() >= until

        await wait_until(reached, lambda: f"{stored} lines are stored: {producer.errors()}", 30)
        return producer

    async def under_way(self, leader: Daemon) -> RunningProgram:
        """Start the producer and freeze ``leader`` while lines are in flight; return the running producer."""
        for _ in range(ATTEMPTS):
            producer = await self.started(2000)
            leader.process.freeze()
            if await self.cluster.stored_count() < self.lines:
                assert producer.returncode is None, "it waits for unstored lines"
                return producer
            # The producer finished before the freeze.
            leader.process.thaw()
            assert await producer.ended(60) == 0, producer.errors()
            self.grow()
        raise AssertionError(f"no leader was frozen under load in {ATTEMPTS} attempts")

    async def assert_all_stored_by(self, producer: RunningProgram) -> None:
        """Check that the producer succeeds, and that every line is stored once, in order per key."""
        assert await producer.ended(60) == 0, producer.errors()
        assert re.search(r"accepted ([1-9]\d*), stored \1, failed 0", producer.errors())
        await self.assert_stored_once_and_in_order()

    async def assert_stored_once_and_in_order(self) -> None:
        """Check that every line of the file is stored once, in order per key."""
        stored = [(key, json.loads(value)["n"]) for key, value in await self.cluster.stored()]

        assert list(range(self.lines)) == sorted(n for _, n in stored)
        by_key: dict[bytes, list[int]] = {}
        for key, n in stored:
            by_key.setdefault(key, []).append(n)
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


LOADER = ("produce", "orders", "--key-field", "id", "--name", "loader")


async def test_killing_a_leader_under_load_loses_and_duplicates_nothing(cluster: Cluster, pair: tuple[Daemon, Daemon]):
    leader, standby = pair
    loader = Loader(cluster)
    producer = await loader.under_way(leader)

    await leader.process.kill()

    await standby.until_leading()
    await loader.assert_all_stored_by(producer)


async def test_a_leader_that_resumes_after_its_session_expired_does_no_harm(
    cluster: Cluster, pair: tuple[Daemon, Daemon]
):
    leader, standby = pair
    loader = Loader(cluster)
    producer = await loader.under_way(leader)

    await standby.until_leading()
    leader.process.thaw()

    await leader.until_leading(0)
    await loader.assert_all_stored_by(producer)

    # It can lead again.
    await standby.process.kill()
    await leader.until_leading()
    await cluster.commands.succeed("produce", "orders", "--key", "x", stdin=b"{}\n")
    assert len(await cluster.stored()) == loader.lines + 1
