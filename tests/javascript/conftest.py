"""The client in JavaScript, installed as a user installs it, with its examples."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from controller.settings.sections import SubscriptionSettings
from tests.support.servers.cluster import Cluster
from tests.support.servers.npm_packages import npm_packages
from tests.support.servers.programs import RunningProgram
from tests.support.source_folders import ROOT

CLIENT = ROOT / "clients" / "javascript"
Start = Callable[..., Awaitable[RunningProgram]]


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the examples and of the tests' programs. It has the packages of the lock file, whose hashes npm checks, and the packed client."""
    # Own, as another process packs the client, too.
    folder = shutil.copytree(npm_packages(CLIENT, pytestconfig), tmp_path_factory.mktemp("npm") / "own", symlinks=True)
    packed = subprocess.run(
        ("npm", "pack", "--silent", "--pack-destination", str(folder), str(CLIENT)), check=True, capture_output=True
    )
    installed = folder / "node_modules" / "@headgate" / "client"
    installed.mkdir(parents=True, exist_ok=True)
    archive = folder / packed.stdout.decode().split()[-1]
    subprocess.run(("tar", "-xzf", str(archive), "-C", str(installed), "--strip-components=1"), check=True)
    # A program inside of a package with this name would import that package itself.
    programs = folder / "programs"
    for folder_of_programs in (CLIENT / "examples", Path(__file__).parent):
        shutil.copytree(folder_of_programs, programs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py*", "__*"))
    (programs / "package.json").write_text('{"type": "module"}')
    return programs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster_of_file(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One daemon leads the only shard. A consumer that was killed loses its segments after 3 s."""
    subscriptions = SubscriptionSettings(heartbeat_interval_seconds=1.0, grace_seconds=3.0)
    async with Cluster(tmp_path_factory.mktemp("cluster"), shards=1, subscriptions=subscriptions) as cluster:
        await cluster.start_servers()
        await cluster.start_daemon("one")
        await cluster.leader()
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(cluster_of_file: Cluster) -> AsyncIterator[Cluster]:
    """A test deletes its topics; one that changes more is the last of its file."""
    yield cluster_of_file
    listed = await cluster_of_file.commands.succeed("topic", "list", "--json")
    for topic in reversed(listed.document()):  # "orders" before "dead", which keeps its dead letters
        await cluster_of_file.commands.succeed("topic", "delete", topic["topic"], "--force", "--yes")


@pytest_asyncio.fixture(loop_scope="module")
async def start(programs: Path) -> AsyncIterator[Start]:
    """Start one of the programs at the topic orders of a cluster. What still runs at the end is killed."""
    started: list[RunningProgram] = []

    async def start(program: str, cluster: Cluster, out: Path, *options: str, **more: int) -> RunningProgram:
        named = "--cluster", cluster.name, "--topic", "orders", "--port", str(cluster.broker.port), *options
        log = out.with_suffix(".err")
        command = "node", str(programs / program), *named
        started.append(await RunningProgram.start(*command, log_path=log, output_path=out, **more))
        return started[-1]

    yield start
    for program in started:
        await program.kill()
