"""The disk of the ledger is full, and the logs of the daemons are on it, too."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.settings.sections import LogSettings
from tests.support.servers.cluster import Cluster, Daemon
from tests.support.servers.programs import TEST_SECONDS, jsonl, metric, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder], check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free; return what to delete."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


class CrowdedCluster(Cluster):
    """The ledger and the logs of the daemons are on one disk; servers and clients are elsewhere."""

    def log_path(self, name: str) -> Path:
        return self.folder / "disk" / f"{name}.log"


@pytest.mark.nightly
async def test_commits_wait_for_a_full_disk_and_no_daemon_ends(disk: Path, tmp_path: Path):
    log = LogSettings(format="json", level="debug")
    async with CrowdedCluster(tmp_path, ledger_url=(disk / "store").as_uri(), log=log) as cluster:
        leader = await cluster.start_leader("leader")
        other = await cluster.start_daemon("other")
        await cluster.commands.succeed("topic", "create", "orders")

        async def says_why(daemon: Daemon) -> bool:
            status, report = await daemon.health()
            found = report.get("components", {}).get("store", {})
            return status == 503 and found["state"] == "failed" and "No space left" in found["reason"]

        filler = fill(disk)
        producing = asyncio.create_task(
            cluster.commands.succeed("produce", "orders", "--key", "x", stdin=jsonl({"n": n} for n in range(20)))
        )
        for daemon in (leader, other):
            await wait_until(lambda daemon=daemon: says_why(daemon), "/readyz is 503 and says that the disk is full")
            await wait_until(
                lambda daemon=daemon: metric(daemon.http_address, "headgate_log_lines_lost_total"),
                "lost lines are counted",
            )
        assert await cluster.stop("other") == 0
        assert not producing.done()
        assert leader.process.returncode is None
        filler.unlink()

        assert "stored 20, failed 0" in (await producing).err
        assert [b'{"n": %d}' % n for n in range(20)] == [value for _, value in await cluster.stored()]
        await wait_until(lambda: leader.reports(200, "store", "ok"), "/readyz is 200 again")

        fill(disk)
        await wait_until(lambda: says_why(leader), "/readyz is 503 again")
        assert await cluster.stop("leader") == 0
