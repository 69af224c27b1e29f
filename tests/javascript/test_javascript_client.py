"""A JavaScript client, written from docs/protocol.md alone, with two real daemons of which one is killed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TIMEOUT_FACTOR, wait_until, whole_lines

HERE = Path(__file__).parent
MOST_LINES = 295
"""The client is also an example, so it must stay short."""
BATCH, BATCHES, KEYS = 5, 400, 7

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are missing; Debian has both"
)


@pytest.fixture
async def program(pytestconfig: pytest.Config) -> Path:
    """The client with its packages, which are installed once per lock file in pytest's cache."""
    lock = (HERE / "package-lock.json").read_bytes()
    folder = pytestconfig.cache.mkdir(f"javascript-{hashlib.sha256(lock).hexdigest()[:12]}")
    for name in ("package.json", "package-lock.json", "client.mjs", "produce.mjs"):
        shutil.copyfile(HERE / name, folder / name)
    if not (folder / "installed").exists():
        npm = await asyncio.create_subprocess_exec(
            *("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await npm.communicate()
        if npm.returncode != 0:
            pytest.fail(f"npm could not install the packages of tests/javascript:\n{output.decode()}", pytrace=False)
        (folder / "installed").touch()
    return folder / "produce.mjs"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, shards=1) as cluster:
        await cluster.start_servers()
        await cluster.start_daemon("one")
        await cluster.start_daemon("two")
        yield cluster


@needs_node
async def test_the_client_stores_every_record_once_and_in_order_although_its_leader_is_killed(
    program: Path, cluster: Cluster, tmp_path: Path
) -> None:
    leader = await cluster.leader()
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "4")
    lines = [(f"key-{n % KEYS}".encode(), b"%d" % n) for n in range(BATCH * BATCHES)]
    out = tmp_path / "javascript.out"
    with out.open("wb") as to_out:
        client = await asyncio.create_subprocess_exec(
            *("node", str(program), "--cluster", cluster.name, "--topic", "orders"),
            *("--port", str(cluster.broker.port), "--batch", str(BATCH)),
            stdin=asyncio.subprocess.PIPE,
            stdout=to_out,
            stderr=to_out,
            env=os.environ | {"NODE_OPTIONS": ""},
        )
    assert client.stdin is not None
    try:
        for n, (key, value) in enumerate(lines):
            client.stdin.write(key + b"\t" + value + b"\n")
            if n == len(lines) // 3:
                await wait_until(lambda: len(whole_lines(out)) > 10, "some batches are stored")
                await cluster.kill(leader)
            await client.stdin.drain()
        client.stdin.close()
        async with asyncio.timeout(60 * TIMEOUT_FACTOR):
            await client.wait()
    finally:
        if client.returncode is None:
            client.kill()
            await client.wait()

    printed = whole_lines(out)
    assert client.returncode == 0, printed[-20:]
    assert printed[-1].startswith(f"done {len(lines)} resent "), printed[-1]
    assert [f"stored {first} {BATCH}" for first in range(0, len(lines), BATCH)] == printed[:-1]
    assert len(await cluster.past_leaders()) >= 2
    records = await cluster.stored()
    expected = {key: [value for found, value in lines if found == key] for key, _ in lines}
    assert expected == {key: [value for found, value in records if found == key] for key in expected}
    assert len(lines) == len(records)


def test_the_example_stays_short() -> None:
    assert len((HERE / "client.mjs").read_text().splitlines()) <= MOST_LINES


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (HERE / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock
