"""SeaweedFS: a second server of S3 with put-if-absent, from a wheel with its program."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from controller.local.reserved_port import ReservedPort
from headgate.process.parent_death_signal import with_parent_death_signal
from tests.support.servers.s3_server import BUCKET, s3_environment

START_SECONDS = 60.0


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server with one empty bucket; yield the environment of its clients."""
    with contextlib.ExitStack() as stack:
        names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
        ports = {name: stack.enter_context(ReservedPort()).number for name in names}
        environment = s3_environment(f"http://127.0.0.1:{ports['s3.port']}")
        credentials = {"accessKey": environment["AWS_ACCESS_KEY_ID"], "secretKey": environment["AWS_SECRET_ACCESS_KEY"]}
        identity = {"name": "tests", "credentials": [credentials], "actions": ["Admin", "Read", "List", "Write"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        # The catalogs have ports that two test runs would share.
        ports |= {"s3.port.iceberg": 0, "s3.port.lance": 0}
        options = {"dir": folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.config": folder / "s3.json"}
        command = [str(Path(sys.executable).with_name("weed")), "server", "-filer", "-s3", "-master.telemetry=false"]
        command += [f"-{name}={value}" for name, value in (options | ports).items()]
        log = stack.enter_context((folder / "weed.log").open("wb"))
        server = subprocess.Popen(with_parent_death_signal(*command), cwd=folder, stdout=log, stderr=log)
        stack.callback(server.wait)
        stack.callback(server.kill)
        _make_bucket(environment)
        yield environment


def _make_bucket(environment: dict[str, str]) -> None:
    """Make the bucket once the server runs."""
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            assert time.monotonic() < until, "SeaweedFS has not started: see weed.log"
            time.sleep(0.1)
        else:
            return
