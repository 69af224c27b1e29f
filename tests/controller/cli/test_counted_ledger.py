"""What `headgate doctor` says about the ledger that Spark counts."""

from pathlib import Path

import pytest

from controller.cli.doctor import counted_ledger
from controller.settings.load import Settings
from controller.settings.sections import DrainSettings, LedgerSettings
from drain.backlog.results import Result, publish_result
from drain.protocol import CountedLedger
from drain.service.service import DrainListener
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH
from headgate.storage.object_store import open_store
from tests.support.fakes.drain_service import FakeDrainService

OWN, OTHER = "a" * 32, "b" * 32


async def settings_of(folder: Path, **drain: object) -> Settings:
    """Return the settings of a daemon whose ledger has the id `OWN`."""
    url = (folder / "ledger").as_uri()
    await open_store(url).create(IDENTITY_PATH, identity_object(OWN))
    socket = str(folder / "s")
    return Settings(ledger=LedgerSettings(url=url), drain=DrainSettings(**{"socket": socket, "spawn": False, **drain}))


@pytest.mark.parametrize(
    ("counted", "level", "text"),
    [
        (CountedLedger(OWN, "file:///same"), "ok", "Spark counts file:///same"),
        (CountedLedger(OTHER, "file:///old"), "problem", "file:///old was counted, a ledger with the id bbbb"),
        (CountedLedger("", "file:///old"), "problem", "file:///old was counted, a ledger with no id"),
        (None, "warning", "not known yet"),
    ],
    ids=["its own", "another", "without an id", "store unreachable"],
)
async def test_the_spark_process_is_asked_which_ledger_it_counts(
    tmp_path: Path, counted: CountedLedger | None, level: str, text: str
) -> None:
    settings = await settings_of(tmp_path)
    fake = FakeDrainService()
    fake.ledger = counted
    async with DrainListener(Path(settings.drain_socket), fake.serve):
        (found,) = await counted_ledger(settings, 5.0)
        await fake.hang_up()

    assert (found.level, text in found.text) == (level, True), found
    assert level != "problem" or ("HEADGATE_LEDGER" in found.remedy and settings.ledger.url in found.text)


@pytest.mark.parametrize(("spawn", "levels"), [(False, ["problem"]), (True, [])], ids=["a service", "its own child"])
async def test_a_process_that_does_not_run_is_a_problem_unless_the_daemon_starts_it(
    tmp_path: Path, spawn: bool, levels: list[str]
) -> None:
    found = await counted_ledger(await settings_of(tmp_path, spawn=spawn), 1.0)

    assert [each.level for each in found] == levels


async def test_published_results_say_which_ledger_they_count(tmp_path: Path) -> None:
    results = (tmp_path / "results").as_uri()
    settings = await settings_of(tmp_path, results=results)
    assert ["warning"] == [each.level for each in await counted_ledger(settings, 1.0)]

    await publish_result(open_store(results), Result(3, 7, (), ledger_id=OTHER))
    assert ["problem"] == [each.level for each in await counted_ledger(settings, 1.0)]
    await publish_result(open_store(results), Result(3, 8, (), ledger_id=OWN))
    assert ["ok"] == [each.level for each in await counted_ledger(settings, 1.0)]


async def test_a_ledger_on_which_no_daemon_has_started_is_not_compared(tmp_path: Path) -> None:
    settings = await settings_of(tmp_path)
    await open_store(settings.ledger.url).delete(IDENTITY_PATH)

    assert [] == await counted_ledger(settings, 1.0)
