"""The procedures of docs/operations on real servers, as one story: a backup of a cluster in use, ZooKeeper and broker lost
for good, the ledger moved to another store, and the backup restored as another cluster.

A named producer writes numbered lines throughout. After each step its next run stores exactly the lines that are
missing, and a subscription continues.
"""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.settings.config import load_client_config
from tests.support.servers.cluster import Cluster, Daemon, zookeeper_client
from tests.support.servers.programs import TEST_SECONDS, jsonl

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

SHARDS = 2


class Story:
    """One cluster and the lines that its producer has been given."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lines = 0
        self.file = cluster.folder / "lines.ndjson"

    async def daemon(self) -> Daemon:
        """Start a daemon; return when it leads every shard."""
        daemon = await self.cluster.start_daemon("only")
        await daemon.until_leading()
        return daemon

    async def produce(self, more: int) -> None:
        """Append lines to the file, and run the producer on the whole file."""
        with self.file.open("ab") as file:
            file.write(jsonl({"id": f"k{n % 5}", "n": n} for n in range(self.lines, self.lines + more)))
        self.lines += more
        await self.produce_again(stored=more)

    async def produce_again(self, stored: int) -> None:
        """Run the producer on the whole file: it stores ``stored`` lines that the ledger lacks."""
        run = await self.cluster.commands.succeed(
            *("produce", "orders", "--key-field", "id", "--name", "loader", str(self.file))
        )
        assert f"stored {stored}, failed 0" in run.err

    async def consume(self) -> list[int]:
        """Return the numbers of the lines that the subscription delivers now."""
        run = await self.cluster.commands.succeed(
            *("consume", "orders", "billing", "--from", "earliest", "--exit-when-caught-up")
        )
        return sorted(record["value"]["n"] for record in run.records())

    async def assert_each_line_is_stored_once(self) -> None:
        assert list(range(self.lines)) == sorted(json.loads(value)["n"] for _, value in await self.cluster.stored())


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    """A cluster with a topic, ten lines and a subscription that has read them."""
    async with Cluster(tmp_path, shards=SHARDS) as cluster:
        await cluster.start_servers()
        story = Story(cluster)
        await story.daemon()
        await cluster.commands.succeed("topic", "create", "orders", "--segments", "2")
        await story.produce(10)
        assert list(range(10)) == await story.consume()
        yield story


@pytest.mark.nightly
async def test_a_cluster_survives_the_loss_and_the_move_of_everything_that_holds_its_state(story: Story) -> None:
    cluster, commands = story.cluster, story.cluster.commands
    backup = cluster.folder / "backup"

    # Backup, while the cluster is in use; a second run adds what is new.
    await commands.succeed("ledger", "copy", cluster.ledger_url, str(backup))
    await story.produce(10)
    await commands.succeed("ledger", "copy", cluster.ledger_url, str(backup))
    await commands.succeed("ledger", "check", str(backup), "--shards", str(SHARDS))
    await story.produce(10)
    assert list(range(10, 30)) == await story.consume()

    # ZooKeeper lost for good: leaders continue; afterwards every daemon is restarted.
    await cluster.zookeeper.stop()
    shutil.rmtree(cluster.folder / "zookeeper" / "data")
    await story.produce(10)
    await cluster.zookeeper.start()
    await cluster.stop("only")
    await story.daemon()
    await story.produce(10)
    assert list(range(30, 50)) == await story.consume()

    # The broker lost for good, with its retained messages and sessions.
    await cluster.broker.stop()
    (cluster.folder / "broker" / "mosquitto.db").unlink(missing_ok=True)
    await cluster.broker.start()
    await story.produce(10)
    assert list(range(50, 60)) == await story.consume()

    await move(story, cluster.folder / "moved")
    await story.produce(10)
    assert list(range(60, 70)) == await story.consume()
    await story.assert_each_line_is_stored_once()

    await cluster.stop("only")
    await restore(story, backup)


async def test_an_older_ledger_that_is_put_back_under_a_running_consumer_hides_no_record(story: Story) -> None:
    """The first new term has the leader epoch of a lost one, and new records have the offsets of lost ones."""
    cluster = story.cluster
    ledger, backup = cluster.folder / "store", cluster.folder / "put back"
    await cluster.stop("only")
    shutil.copytree(ledger, backup)
    await story.daemon()
    running = await cluster.commands.start("running", "consume", "orders", "billing", "--consumer", "c")
    await story.produce(20)
    await running.until_printed(20)
    exported = await cluster.commands.succeed("subscription", "export", "orders", "billing")

    await cluster.stop("only")
    shutil.rmtree(ledger)
    shutil.copytree(backup, ledger)
    await story.daemon()
    new = jsonl({"id": f"k{n % 5}", "n": n} for n in range(100, 125))
    run = await cluster.commands.succeed("produce", "orders", "--key-field", "id", stdin=new)
    assert "stored 25, failed 0" in run.err

    assert 1 == await running.ended(60)
    assert "an older ledger was put back" in running.errors()
    saved = exported.out.encode()
    refused = await cluster.commands.finish("subscription", "import", "orders", "billing", "--yes", stdin=saved)
    assert "an older ledger was put back" in refused.err
    assert list(range(100, 125)) == await story.consume()


async def move(story: Story, folder: Path) -> None:
    """Move the ledger to ``folder``, as docs/operations/backup.md describes."""
    cluster = story.cluster
    await cluster.stop("only")
    await cluster.commands.succeed("ledger", "copy", cluster.ledger_url, str(folder))
    cluster.ledger_url = folder.as_uri()

    await refused(cluster, "change ledger_url in the ZooKeeper node /headgate/test/config, and remove ledger_id")

    with zookeeper_client(cluster) as client:
        config = json.loads(client.get("/headgate/test/config")[0]) | {"ledger_url": cluster.ledger_url}
    store_config(cluster, config)
    # The copy is another ledger, with an id of its own: a disk of one machine would look like this to its daemon.
    await refused(cluster, f"{folder.as_uri()} is another ledger here: its object ledger.json has the id ")
    del config["ledger_id"]
    store_config(cluster, config)
    await story.daemon()

    # A daemon whose machine has another disk at the path of the new ledger.
    elsewhere = folder.with_name("mounted elsewhere")
    shutil.move(folder, elsewhere)
    shutil.copytree(cluster.folder / "store", folder)
    await refused(cluster, f"{folder.as_uri()} is another ledger here: its object ledger.json has the id ")
    shutil.rmtree(folder)
    shutil.move(elsewhere, folder)
    cluster.client_config_path.write_text(
        cluster.client_config_path.read_text().replace(f"{cluster.folder}/store", f"{folder}")
    )
    assert load_client_config(cluster.client_config_path).ledger_url == cluster.ledger_url


async def refused(cluster: Cluster, line: str) -> None:
    """Start a daemon that ends with ``line``."""
    daemon = await cluster.start_daemon("refused")
    assert await daemon.ended() == 1
    assert line in daemon.log().splitlines()[-1]
    assert "Traceback" not in daemon.log()
    del cluster.programs["refused"]


def store_config(cluster: Cluster, config: dict[str, Any]) -> None:
    with zookeeper_client(cluster) as client:
        client.set("/headgate/test/config", json.dumps(config).encode())


async def restore(story: Story, backup: Path) -> None:
    """Start another cluster on a copy of the backup. It has twenty lines, and ten of them were acknowledged."""
    old = story.cluster
    folder = old.folder / "restored"
    await old.commands.succeed("ledger", "copy", str(backup), str(folder / "store"))
    async with Cluster(folder, name="restored", shards=SHARDS) as restored:
        await restored.start_servers()
        story.cluster = restored
        await story.daemon()

        assert list(range(10, 20)) == await story.consume(), "positions are those of the backup"
        await story.produce_again(stored=story.lines - 20)
        await story.assert_each_line_is_stored_once()
        assert list(range(20, story.lines)) == await story.consume()
