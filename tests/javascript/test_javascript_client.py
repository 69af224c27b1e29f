"""The producer in JavaScript, with two real daemons of which one is killed."""

import subprocess
from pathlib import Path

import pytest

from tests.javascript.conftest import Start
from tests.support.servers.cluster import Cluster
from tests.support.source_folders import ROOT

BATCH, BATCHES, KEYS = 5, 1000, 7
LINES = [(f"key-{n % KEYS}".encode(), b"%d" % n) for n in range(BATCH * BATCHES)]

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


async def test_the_client_stores_every_record_once_and_in_order_although_its_leader_is_killed(
    start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start_daemon("two")
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "4")
    client = await start(
        "produce.mjs", cluster, tmp_path / "javascript.out", "--batch", str(BATCH), stdin=subprocess.PIPE
    )
    assert client.stdin is not None
    client.stdin.write(b"".join(key + b"\t" + value + b"\n" for key, value in LINES))
    client.stdin.close()
    await client.until_printed(10)
    await cluster.kill("one")

    assert await client.ended(60) == 0, client.errors()
    printed = client.lines()
    assert printed[-1].startswith(f"done {len(LINES)} resent "), printed[-1]
    assert [f"stored {first} {BATCH}" for first in range(0, len(LINES), BATCH)] == printed[:-1]
    assert len(await cluster.past_leaders()) >= 2
    records = await cluster.stored()
    expected = {key: [value for found, value in LINES if found == key] for key, _ in LINES}
    assert expected == {key: [value for found, value in records if found == key] for key in expected}
    assert len(LINES) == len(records)


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (ROOT / "clients" / "javascript" / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock


def test_the_types_describe_the_package(programs: Path) -> None:
    tsc = programs.parent / "node_modules" / "typescript" / "bin" / "tsc"
    options = "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022"
    done = subprocess.run(
        ("node", tsc, *options, programs / "typed.mts"), cwd=programs, capture_output=True, check=False
    )

    assert (0, b"") == (done.returncode, done.stdout)
