"""The daemon's connection to the Spark process: what it reports, and when leaders check again."""

import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from controller.connections.drain import DrainConnection, spark_options
from controller.settings.load import Settings
from controller.settings.sections import CompactionSettings, DrainSettings, LedgerSettings
from drain.protocol import BacklogRequest, CountedLedger, DrainCheckError, DrainQuery, wrong_ledger
from drain.service.service import DrainListener, parsed
from metrics.instruments import Instruments
from tests.support.fakes.drain_service import FakeDrainService
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


async def test_leaders_check_again_once_when_the_drain_service_becomes_ready(tmp_path: Path) -> None:
    """Otherwise blocked segments wait for the end of a pause, up to a quarter of an hour."""
    rechecks: list[None] = []
    settings = Settings(ledger=LedgerSettings(url=tmp_path.as_uri()))
    drain = DrainConnection(settings, Instruments(CollectorRegistry()), random.Random(1), lambda: rechecks.append(None))

    drain._on_state("degraded", "the process ended")
    assert [] == rechecks
    assert "the process ended" == drain.problem()
    for _ in range(2):
        drain._on_state("ready", "it responds")

    assert [None] == rechecks
    assert drain.problem() is None


OWN, OTHER = CountedLedger("a" * 32, "file:///new"), CountedLedger("b" * 32, "file:///old")


async def test_a_drain_service_of_another_ledger_degrades_the_daemon_until_it_counts_the_cluster_s(tmp_path: Path):
    """The service is started again with another ledger, and no check is due for a quarter of an hour."""
    rechecks: list[None] = []
    fake = FakeDrainService()
    fake.ledger, fake.drained = OTHER, frozenset({1})
    socket = str(tmp_path / "s")
    settings = Settings(ledger=LedgerSettings(url=OWN.url), drain=DrainSettings(socket=socket, spawn=False))
    registry = CollectorRegistry()
    drain = DrainConnection(settings, Instruments(registry), random.Random(1), lambda: rechecks.append(None))
    known: list[str | None] = [None]
    question = DrainQuery(0, 1, 2, 0, frozenset({1}), 0)
    async with DrainListener(Path(socket), fake.serve), AsyncExitStack() as stack:
        await drain.start(stack)
        checker = await drain.connect(stack, lambda: known[0])
        with pytest.raises(DrainCheckError, match="this daemon's ledger is file:///new with no id"):
            await checker.drained(question)
        known[0] = OWN.ledger_id
        for ask in (checker.drained(question), drain.query_backlog(BacklogRequest(shard=0, written_to=1))):
            with pytest.raises(DrainCheckError, match="file:///old was counted") as refused:
                await ask
            assert refused.value.failure == "wrong_ledger"
        assert drain.state == ("degraded", wrong_ledger(OWN, OTHER))
        assert registry.get_sample_value("headgate_drain_check_failures_total", {"reason": "wrong_ledger"}) == 3

        await fake.hang_up()
        await until(lambda: fake.connections == 2)
        with pytest.raises(DrainCheckError, match="file:///old was counted"):
            await checker.drained(question)
        assert drain.state[0] == "degraded", "it answers again, but still about the other ledger"
        fake.ledger = OWN
        await fake.hang_up()
        await until(lambda: drain.state[0] == "ready")
        assert (await checker.drained(question)).drained == {1: 4}

    assert rechecks == [None]


def test_the_settings_are_passed_to_the_spark_process() -> None:
    conf = {"spark.a": "1", "spark.b": "x=y z"}
    drain = DrainSettings(master="sc://host:15002", driver_memory="2g", spark_conf=conf)
    settings = Settings(
        ledger=LedgerSettings(url=OWN.url), drain=drain, compaction=CompactionSettings(min_chunks=7, delay_seconds=1.5)
    )
    arguments = parsed(["--ledger", "s3://bucket/l", "--listen", "/s", *spark_options(settings)])

    assert (arguments.master, arguments.driver_memory) == ("sc://host:15002", "2g")
    assert dict(arguments.conf) == conf
    assert (arguments.chunks, arguments.delay_seconds, arguments.external) == (7, 1.5, None)


def test_without_compaction_the_spark_process_compacts_nothing_and_reads_the_mapping_of_tables() -> None:
    drain = DrainSettings(external="/etc/external.toml")
    options = spark_options(
        Settings(ledger=LedgerSettings(url=OWN.url), drain=drain, compaction=CompactionSettings(enabled=False))
    )
    arguments = parsed(["--ledger", "s3://bucket/l", "--listen", "/s", *options])

    assert (arguments.chunks, arguments.external) == (0, Path("/etc/external.toml"))
