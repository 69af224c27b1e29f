"""The producer in JavaScript, with two real daemons of which one is killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TIMEOUT_FACTOR, wait_until, whole_lines
from tests.support.source_folders import ROOT

BATCH, BATCHES, KEYS = 5, 400, 7

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


async def test_the_client_stores_every_record_once_and_in_order_although_its_leader_is_killed(
    programs: Path, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start_daemon("two")
    leader = await cluster.leader()
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "4")
    lines = [(f"key-{n % KEYS}".encode(), b"%d" % n) for n in range(BATCH * BATCHES)]
    out = tmp_path / "javascript.out"
    with out.open("wb") as to_out:
        client = await asyncio.create_subprocess_exec(
            *("node", str(programs / "produce.mjs"), "--cluster", cluster.name, "--topic", "orders"),
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


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (ROOT / "clients" / "javascript" / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock
