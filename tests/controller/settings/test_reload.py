"""Which changed settings apply at once, and which need a restart."""

import pytest

from controller.settings.load import Settings
from controller.settings.reload import AT_RUN_TIME, reloaded
from controller.settings.sections import IngestSettings, LedgerSettings, LogSettings, RetentionSettings, ScalingSettings

RUNNING = Settings(ledger=LedgerSettings(url="file:///ledger"))


def test_devices_and_log_level_apply_at_once() -> None:
    read = RUNNING.replace(ingest=IngestSettings(mqtt_devices=False), log=LogSettings(level="debug"))
    outcome = reloaded(RUNNING, read)

    assert read == outcome.settings
    assert (("ingest.mqtt_devices", "log.level"), ()) == (outcome.applied, outcome.needs_restart)


def test_all_of_scaling_and_retention_applies_at_once() -> None:
    read = RUNNING.replace(
        scaling=ScalingSettings(split=True, max_segments=8), retention=RetentionSettings(max_age_seconds=60)
    )

    assert ("scaling.split", "scaling.max_segments", "retention.max_age_seconds") == reloaded(RUNNING, read).applied
    assert read == reloaded(RUNNING, read).settings


def test_other_changes_need_a_restart_at_every_reload() -> None:
    """Also if another setting of the same section applies at once."""
    read = RUNNING.replace(
        ledger=LedgerSettings(url="file:///elsewhere"),
        ingest=IngestSettings(mqtt_devices=False, max_producers=7),
        log=LogSettings(format="json"),
    )
    outcome = reloaded(RUNNING, read)

    assert RUNNING.replace(ingest=IngestSettings(mqtt_devices=False)) == outcome.settings
    assert ("ledger.url", "ingest.max_producers", "log.format") == outcome.needs_restart
    assert ((), outcome.needs_restart) == (
        reloaded(outcome.settings, read).applied,
        reloaded(outcome.settings, read).needs_restart,
    )


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_every_setting_that_applies_at_once_exists(name: str) -> None:
    assert name in dict(RUNNING.rows())
