"""ZooKeeper, broker or store are stopped, frozen or not started yet: the daemon waits and recovers."""

import asyncio
import resource
from pathlib import Path

import pytest

from tests.support.servers.cluster import SESSION_SECONDS, Cluster, Daemon
from tests.support.servers.programs import TEST_SECONDS, get, wait_until
from tests.support.waiting import never

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


async def ready(daemon: Daemon) -> bool:
    """Whether /readyz reports the daemon ready."""
    return (await daemon.health())[0] == 200


@pytest.mark.parametrize("missing", ["zookeeper", "broker"])
async def test_a_daemon_started_before_its_servers_waits_and_reports_the_reason(missing: str, tmp_path: Path):
    async with Cluster(tmp_path) as cluster:
        await (cluster.broker if missing == "zookeeper" else cluster.zookeeper).start()
        daemon = await cluster.start_daemon("only")

        async def reports_reason() -> bool:
            return await daemon.reports(503, "cluster" if missing == "zookeeper" else "broker", "failed")

        await wait_until(reports_reason, "/readyz is 503 and names the component")
        assert (await get(daemon.http_address, "/livez"))[0] == 200
        _, report = await daemon.health()
        reasons = {name: found["reason"] for name, found in report["components"].items() if found["state"] == "failed"}
        assert ("ZooKeeper" if missing == "zookeeper" else "not connected") in " ".join(reasons.values())

        await getattr(cluster, missing).start()
        await daemon.until_leading()
        await wait_until(lambda: ready(daemon), "/readyz is 200")
        await cluster.commands.succeed("topic", "create", "orders")


async def test_a_daemon_waits_for_an_unusable_ledger_folder_and_reports_it(tmp_path: Path):
    async with Cluster(tmp_path) as cluster:
        await cluster.start_servers()
        store = tmp_path / "store"
        store.write_text("in the way")
        daemon = await cluster.start_daemon("only")

        async def reports_reason() -> bool:
            return await daemon.reports(503, "store", "failed")

        await wait_until(reports_reason, "/readyz is 503 and names the store")
        await wait_until(lambda: f"cannot list {store}" in daemon.log(), "the log gives the reason")
        store.unlink()

        await daemon.until_leading()
        await cluster.commands.succeed("topic", "create", "orders")

        # Again while it leads: no reply is sent for records that are not durable.
        store.rename(tmp_path / "aside")
        store.write_text("in the way")
        producing = asyncio.create_task(cluster.commands.succeed("produce", "orders", "--key", "x", stdin=b"{}\n"))
        await wait_until(reports_reason, "/readyz is 503 again")
        assert not producing.done()
        store.unlink()
        (tmp_path / "aside").rename(store)

        assert "stored 1, failed 0" in (await producing).err
        assert len(await cluster.stored()) == 1
        assert daemon.process.returncode is None

        await daemon.process.kill()
        away = await cluster.commands.finish("status")
        assert away.code == 1
        assert "no daemon is connected to the broker at" in away.err


def open_descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def test_connections_take_no_file_descriptors_that_the_daemon_needs(tmp_path: Path):
    """ZooKeeper's client opens a descriptor for each wait, so it would lose its session."""
    async with Cluster(tmp_path) as cluster:
        daemon = await cluster.start_leader("one")
        pid = daemon.process.pid
        descriptors = open_descriptors(pid) + 20
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        size = len(daemon.log())
        host, port = daemon.http_address.split(":")

        open_connections = [await asyncio.open_connection(host, int(port)) for _ in range(200)]

        await never(lambda: daemon.log_entries("zookeeper.suspended"), 1.5 * SESSION_SECONDS)
        assert await daemon.reports(200, "zookeeper", "ok")
        assert len(daemon.log()) - size < 10_000
        for _, writer in open_connections:
            writer.close()
