"""kinesis-local of npm: a server on loopback that speaks the API of Kinesis. Streams are in its memory."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError

from controller.local.reserved_port import ReservedPort
from headgate.process.parent_death_signal import with_parent_death_signal
from tests.support.servers.npm_packages import npm_packages

START_SECONDS = 60.0
HERE = Path(__file__).parent / "kinesis"
DURATIONS = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS")


def environment(port: int) -> dict[str, str]:
    """Return the environment of a program that uses the server."""
    return {
        "AWS_ENDPOINT_URL_KINESIS": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "headgate-tests",
        "AWS_SECRET_ACCESS_KEY": "headgate-tests",
    }


@pytest.fixture(scope="module")
def kinesis_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a server; yield the environment of its clients."""
    log = tmp_path_factory.mktemp("kinesis") / "log"
    folder = npm_packages(HERE, pytestconfig) / "node_modules" / "kinesis-local"
    node = shutil.which("node")
    assert node is not None, "npm_packages has found it"
    with ReservedPort() as plain, ReservedPort() as tls, log.open("wb") as output:
        settings = {f"{each}_DURATION": "50ms" for each in DURATIONS} | {
            "KINESIS_MOCK_PLAIN_PORT": str(plain.number),
            "KINESIS_MOCK_TLS_PORT": str(tls.number),
        }
        process = subprocess.Popen(
            with_parent_death_signal(node, "main.js"),
            cwd=folder,
            env=os.environ | settings,
            stdout=output,
            stderr=output,
        )
        try:
            found = environment(plain.number)
            _wait(kinesis_client(found), process, log)
            yield found
        finally:
            process.terminate()
            process.wait()


def kinesis_client(environ: dict[str, str]) -> Any:
    return boto3.client("kinesis", endpoint_url=environ["AWS_ENDPOINT_URL_KINESIS"], **credentials(environ))


def credentials(environ: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of a client that say who asks, and where."""
    return {
        "region_name": environ["AWS_DEFAULT_REGION"],
        "aws_access_key_id": environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": environ["AWS_SECRET_ACCESS_KEY"],
    }


def _wait(client: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + START_SECONDS
    while True:
        try:
            client.list_streams()
        except BotoCoreError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends_at, log.read_text()
            time.sleep(0.1)  # Nothing announces that it listens.
        else:
            return
