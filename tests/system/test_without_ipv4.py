"""A node and its clients on a machine whose loopback has no IPv4 address: a network namespace of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.programs import TEST_SECONDS, jsonl

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root"),
    pytest.mark.skipif(None in map(shutil.which, ("unshare", "ip")), reason="unshare or ip is not installed"),
]
WITHOUT_IPV4 = "set -eu; ip link set lo up; ip address delete 127.0.0.1/8 dev lo\n"
NODE = """
headgate() { "$PYTHON" -P -m headgate "$@"; }
"$PYTHON" -P -m headgate up "$@" 2> up.err & node=$!
trap 'kill $node; wait $node || true' EXIT
until grep -q 'Ctrl-C stops everything' up.err; do kill -0 $node; sleep 0.2; done
headgate topic create orders --segments 2
headgate produce orders --key-field id lines.ndjson
headgate consume orders billing --from earliest --exit-when-caught-up > consumed
headgate status > status
until grep -qs 'add 127.0.0.1/8 dev lo' up.err headgate-data/logs/* headgate-data/drain/*.log; do
    kill -0 $node; sleep 0.2
done
"""


OTHER_SERVERS = """
import asyncio, pathlib
from controller.local.embedded import EmbeddedBroker
from controller.local.reserved_port import ReservedPort
from trials.cluster import ensemble

async def main():
    async with EmbeddedBroker(pathlib.Path("amqtt"), kind="amqtt") as broker:
        print(broker.address.rpartition(":")[0])
    ports = [ReservedPort() for _ in range(6)]
    servers = ensemble(pathlib.Path(), 2, lambda: ports.pop().number)
    await asyncio.gather(*(server.start() for server in servers))
    print(sum([await server.leads() for server in servers]))
    await asyncio.gather(*(server.stop() for server in servers))

asyncio.run(main())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("options", [(), ("--tls",)], ids=["plain", "TLS"])
def test_records_are_stored_and_read_and_spark_says_what_it_misses(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "lines.ndjson").write_bytes(jsonl({"id": f"k{n}", "n": n} for n in range(50)))
    done = run(NODE, tmp_path, *options)
    printed = (tmp_path / "up.err").read_text()

    assert done.returncode == 0, f"{done.stderr}\n{printed}"
    assert "127.0.0.1:" not in printed
    assert "MQTT broker (mosquitto) at [::1]:1883" in printed
    assert "://[::1]:9464/" in printed
    found = [json.loads(line)["value"]["n"] for line in (tmp_path / "consumed").read_text().splitlines()]
    assert sorted(found) == list(range(50))


def test_the_other_broker_and_an_ensemble_of_zookeeper_servers_start(tmp_path: Path) -> None:
    done = run('"$PYTHON" -P -c "$@"', tmp_path, OTHER_SERVERS)

    assert (done.returncode, done.stdout) == (0, "[::1]\n1\n"), done.stderr


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in a network namespace of its own."""
    return subprocess.run(
        ["unshare", "--net", "bash", "-c", WITHOUT_IPV4 + script, "headgate", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
