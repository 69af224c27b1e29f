"""What a daemon may rely on when it asks a Spark process: the fake, and the real server with counts of its own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drain.address import Address
from drain.backlog.job import RunOutcome
from drain.backlog.results import Result
from drain.checker.checker import SparkDrainChecker
from drain.protocol import CountedLedger, DrainCheckError, DrainQuery
from drain.service.listener import DrainListener
from drain.service.run_coalescer import RunCoalescer
from drain.service.service import DrainServer
from headgate.backoff import Backoff
from headgate.errors import ConfigError
from metrics import events
from tests.support.fakes.drain_service import FakeDrainService
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.secret_files import write_secret
from tests.support.waiting import until

SECRET, OTHER = b"s" * 32, b"o" * 32
RECONNECT = Backoff(first_seconds=0.01, longest_seconds=0.01)
QUERY = DrainQuery(0, 1, 2, 0, frozenset({1}), 100)


class HundredChunks:
    """An empty ledger of 100 chunks, and a job that counts it on an engine that answers."""

    async def ping(self) -> None:
        pass

    async def run(self, shards: Sequence[int]) -> RunOutcome:
        return RunOutcome(results={shard: Result(shard, 100, ()) for shard in shards}, failures={})

    async def identify(self) -> CountedLedger:
        return CountedLedger("a" * 32, "file:///ledger")

    async def newer_than(self, shard: int, watermark: int) -> range:
        return range(watermark + 1, 101)


@asynccontextmanager
async def listening(kind: str, address: Address, secret: bytes | None) -> AsyncIterator[Address]:
    """Serve at ``address`` with the fake or with the real server."""
    if kind == "fake":
        fake = FakeDrainService()
        async with DrainListener(address, fake.serve, secret=secret) as listener:
            yield listener.address
        await fake.hang_up()
        return
    counted: Any = HundredChunks()
    async with RunCoalescer(counted, counted) as coalescer:
        server = DrainServer(coalescer, counted, counted)
        async with DrainListener(address, server.serve, secret=secret) as listener:
            yield listener.address


@pytest.fixture(params=["fake", "real"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def addresses(tmp_path: Path) -> dict[str, tuple[Address, bytes | None, Path | None]]:
    """Return address, the server's secret, and the client's file, for each way to connect."""
    return {
        "unix": (Address(path=tmp_path / "s"), None, None),
        "tcp": (Address(host="127.0.0.1", port=0), SECRET, write_secret(tmp_path / "secret", SECRET + b"\n")),
    }


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_a_daemon_that_is_who_it_should_be_gets_replies(kind: str, way: str, tmp_path: Path) -> None:
    address, secret, file = addresses(tmp_path)[way]
    async with (
        listening(kind, address, secret) as bound,
        SparkDrainChecker(str(bound), secret_file=file, rng=random.Random(1)) as checker,
    ):
        assert (await checker.drained(QUERY)).drained == {}
        assert (await checker.backlog([0], 7)).rows == []


async def test_another_secret_is_a_state_a_metric_and_no_reply(kind: str, tmp_path: Path) -> None:
    """The daemon tries again, and reads the file each time, so that the secret can be corrected."""
    address, secret, file = addresses(tmp_path)["tcp"]
    assert file is not None
    write_secret(file, OTHER)
    states: list[tuple[str, str]] = []
    observer = RecordingObserver()
    async with (
        listening(kind, address, secret) as bound,
        SparkDrainChecker(
            str(bound),
            secret_file=file,
            timeout_seconds=0.3,
            on_state=lambda *state: states.append(state),
            observer=observer,
            rng=random.Random(1),
            reconnect=RECONNECT,
        ) as checker,
    ):
        with pytest.raises(DrainCheckError):
            await checker.drained(QUERY)
        (state,) = states
        assert state == (
            "degraded",
            f"refused to use the process at {bound}: it has another secret; compare drain.secret_file {file} of both",
        )
        assert observer.of(events.DrainCheckFailed)[0] == events.DrainCheckFailed(reason="denied")

        write_secret(file, SECRET)
        await until(lambda: states[-1][0] == "ready")
        assert (await checker.drained(QUERY)).drained == {}


async def test_an_unusable_file_of_the_secret_is_a_state(kind: str, tmp_path: Path) -> None:
    address, secret, file = addresses(tmp_path)["tcp"]
    assert file is not None
    file.unlink()
    states: list[tuple[str, str]] = []
    async with (
        listening(kind, address, secret) as bound,
        SparkDrainChecker(
            str(bound), secret_file=file, timeout_seconds=0.2, on_state=lambda *state: states.append(state)
        ) as checker,
    ):
        with pytest.raises(DrainCheckError):
            await checker.drained(QUERY)
    assert states == [("degraded", f"$.drain.secret_file: cannot read {file}: No such file or directory")]


@pytest.mark.parametrize(
    ("socket", "secret", "problem"),
    [
        ("tcp:127.0.0.1:7", None, r"\$\.drain\.secret_file: is not set, and every user of this machine can connect"),
        ("tcp:10.0.0.1:7", Path("x"), r"\$\.drain\.socket: tcp:10\.0\.0\.1:7 is not loopback"),
        ("unix:/s", Path("x"), r"\$\.drain\.secret_file: is set, and socket unix:/s is no TCP port"),
    ],
    ids=["no secret", "a network", "a secret without use"],
)
def test_an_address_that_other_users_could_reach_is_refused(socket: str, secret: Path | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SparkDrainChecker(socket, secret_file=secret)
