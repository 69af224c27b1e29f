"""The references that the site makes from the code: complete, and an error for what has no text."""

import functools
import re
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from sitebuild import references as settings
from sitebuild.names import PUBLIC_MODULES, undocumented
from sitebuild.references import (
    LogEvent,
    UndocumentedError,
    exit_code_reference,
    log_events,
    log_meanings,
    log_reference,
    metrics_reference,
)

from controller.settings.load import parse_settings
from controller.settings.reload import AT_RUN_TIME, FILES_READ_AGAIN
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.settings.config import ClientConfig
from metrics.instruments import Instruments
from tests.simulation.situations import situations

ROOT = Path(__file__).parents[2]


@functools.cache
def logged() -> dict[str, LogEvent]:
    return log_events(ROOT)


def entries(text: str) -> dict[str, str]:
    """Return name → its lines."""
    found = re.split(r"^#+ `([^`]+)`$", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_the_settings_of_a_daemon_are_complete() -> None:
    every = {name for name, _ in parse_settings('ledger.url = "file:///x"\naccess.open = true', source="test").rows()}

    assert every <= entries(settings.daemon_settings()).keys()


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("cluster.shards", "integer from 1 to 1 024 · default `4` · a change needs a restart"),
        ("ledger.url", "text · required · a change needs a restart"),
        (
            "log.level",
            'one of `"debug"`, `"error"`, `"info"`, `"warning"` · default `"info"` · SIGHUP applies a change',
        ),
        (
            "zookeeper.session_timeout_seconds",
            "number from 2 to 60, in seconds · default `6.0` · a change needs a restart",
        ),
        ("http.key_file", "text · default: not set · SIGHUP reads the file again, and another path needs a restart"),
        (
            "ingest.queue_bytes",
            "integer from 4 194 304 to 268 435 456, in bytes · default `67_108_864` · a change needs a restart",
        ),
    ],
)
def test_an_entry_says_type_limits_unit_default_and_when_a_change_applies(name: str, facts: str) -> None:
    assert f"*{facts}*" in entries(settings.daemon_settings())[name]


def test_every_setting_that_changes_at_run_time_is_marked() -> None:
    found = entries(settings.daemon_settings())

    assert set(AT_RUN_TIME) == {name for name, text in found.items() if "SIGHUP applies a change*" in text}
    assert set(FILES_READ_AGAIN) == {name for name, text in found.items() if "SIGHUP reads the file again," in text}


def test_the_settings_of_clients_are_complete() -> None:
    assert set(ClientConfig.__struct_fields__) - {"file"} == entries(settings.client_settings()).keys()
    assert set(ProducerSettings.__dataclass_fields__) == entries(settings.producer_settings()).keys()


def test_a_setting_without_a_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Undocumented(msgspec.Struct):
        described: int = 1
        """A text."""
        silent: int = 2

    monkeypatch.setattr(settings, "ClientConfig", Undocumented)

    with pytest.raises(settings.UndocumentedError, match=r"client\.silent has no text"):
        settings.client_settings()


def test_the_metrics_are_those_that_a_daemon_exports() -> None:
    registry = CollectorRegistry()
    instruments = Instruments(registry, backlog_topics=("orders",))
    exported = {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}
    found = entries(metrics_reference())

    assert exported == found.keys()
    assert instruments.labels.keys() <= {family.name for family in registry.collect()}
    assert "*counter · label `reason`: `handover`, " in found["headgate_leader_terms_ended_total"]
    assert "*gauge · label `shard`*" in found["headgate_shard_is_leader"]


def test_exit_codes_have_their_meaning() -> None:
    rows = exit_code_reference().splitlines()[2:]

    assert [0, 1, 2, 3, 130, 141, 143] == [int(row.split("|")[1]) for row in rows]
    assert r"as in ``\| head``." in rows[5]


def test_log_events_have_their_levels_and_data() -> None:
    event = logged()["settings.needs_restart"]

    assert event.levels == {"warning"}
    assert event.fields
    assert event.packages == {"controller"}


def test_each_log_event_has_a_meaning_and_each_meaning_an_event() -> None:
    found = entries(log_reference(logged(), log_meanings()))

    assert "The settings could not be reloaded. Nothing has changed." in found["settings.invalid"]
    with pytest.raises(UndocumentedError, match=r"no meaning of the log events settings\.invalid$"):
        log_reference(logged(), {name: text for name, text in log_meanings().items() if name != "settings.invalid"})
    with pytest.raises(UndocumentedError, match=r"no code logs: settings\.gone$"):
        log_reference(logged(), log_meanings() | {"settings.gone": "x"})


def test_a_name_without_a_page_and_a_method_without_a_text_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = {f"{module}.{name}" for module in PUBLIC_MODULES for name in import_module(module).__all__}
    assert [] == undocumented(exported)

    monkeypatch.setattr(Producer.flush, "__doc__", None)

    assert [
        "headgate.Consumer is exported, and docs/reference/python.md does not list it",
        "headgate.Producer.flush has no docstring",
    ] == undocumented(exported - {"headgate.Consumer"})


def test_the_page_of_situations_has_each() -> None:
    page = (ROOT / "docs" / "decisions" / "situations.md").read_text()

    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| \d+ \|$", page, re.MULTILINE)
    assert [*situations()] == [": ".join(row) for row in rows]
