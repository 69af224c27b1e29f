"""What a running daemon takes over of a changed file, and what it leaves for a restart."""

import msgspec
import pytest

from controller.settings.load import (
    IngestSettings,
    LedgerSettings,
    LogSettings,
    RetentionSettings,
    ScalingSettings,
    Settings,
)
from controller.settings.reload import AT_RUN_TIME, reloaded

RUNNING = Settings(ledger=LedgerSettings(url="file:///ledger"))


def test_nothing_differs() -> None:
    outcome = reloaded(RUNNING, msgspec.structs.replace(RUNNING))

    assert (RUNNING, (), ()) == (outcome.settings, outcome.applied, outcome.needs_restart)


def test_pipelining_devices_and_log_level_are_taken_over() -> None:
    read = RUNNING.replace(ingest=IngestSettings(pipelining=False, mqtt_devices=False), log=LogSettings(level="debug"))
    outcome = reloaded(RUNNING, read)

    assert read == outcome.settings
    assert (("ingest.pipelining", "ingest.mqtt_devices", "log.level"), ()) == (outcome.applied, outcome.needs_restart)


def test_all_of_scaling_and_retention_is_taken_over() -> None:
    read = RUNNING.replace(
        scaling=ScalingSettings(split=True, max_segments=8), retention=RetentionSettings(retention_seconds=60)
    )

    assert ("scaling.split", "scaling.max_segments", "retention.retention_seconds") == reloaded(RUNNING, read).applied
    assert read == reloaded(RUNNING, read).settings


def test_what_cannot_change_is_named_and_stays_as_it_runs() -> None:
    """In the same section as what can; and again at the next reload, for it still differs."""
    read = RUNNING.replace(
        ledger=LedgerSettings(url="file:///elsewhere"),
        ingest=IngestSettings(pipelining=False, max_producers=7),
        log=LogSettings(format="json"),
    )
    outcome = reloaded(RUNNING, read)

    assert RUNNING.replace(ingest=IngestSettings(pipelining=False)) == outcome.settings
    assert ("ledger.url", "ingest.max_producers", "log.format") == outcome.needs_restart
    assert ((), outcome.needs_restart) == (
        reloaded(outcome.settings, read).applied,
        reloaded(outcome.settings, read).needs_restart,
    )


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_what_changes_at_run_time_exists(name: str) -> None:
    assert name in dict(RUNNING.rows())
