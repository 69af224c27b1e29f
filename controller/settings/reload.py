"""Compare changed settings with those of a running daemon: which apply at once, and which need a restart. Pure.

Settings outside `AT_RUN_TIME` are built into connections, locks and state when the daemon starts, and stay unchanged.
"""

from dataclasses import dataclass

import msgspec

from controller.settings import sections
from controller.settings.load import Settings

AT_RUN_TIME = (
    "ingest.mqtt_devices",
    *(f"scaling.{field}" for field in sections.ScalingSettings.__struct_fields__),
    *(f"retention.{field}" for field in sections.RetentionSettings.__struct_fields__),
    *(f"spread.{field}" for field in sections.SpreadSettings.__struct_fields__),
    *(f"standby.{field}" for field in sections.StandbySettings.__struct_fields__),
    "access.file",
    "access.open",
    "log.level",
)
"""Settings that can change while the daemon runs."""
FILES_READ_AGAIN = tuple(
    f"{name}.{field}"
    for name, section in (
        ("zookeeper", sections.ZooKeeperSettings),
        ("broker", sections.BrokerSettings),
        ("http", sections.HttpSettings),
    )
    for field in section.__struct_fields__
    if field.endswith("_file")
)
"""Settings whose files, under the same path, are read again by every reload."""


@dataclass(frozen=True, slots=True)
class Reload:
    """The settings to continue with, and the changes (``section.field``, in the order of the sections)."""

    settings: Settings
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reloaded(running: Settings, read: Settings) -> Reload:
    settings, applied, needs_restart = running, [], []
    for section in running.__struct_fields__:
        before, after = getattr(running, section), getattr(read, section)
        changes = {
            field: getattr(after, field)
            for field in before.__struct_fields__
            if getattr(before, field) != getattr(after, field)
        }
        applied_now = {field: value for field, value in changes.items() if f"{section}.{field}" in AT_RUN_TIME}
        settings = settings.replace(**{section: msgspec.structs.replace(before, **applied_now)})
        applied += [f"{section}.{field}" for field in applied_now]
        needs_restart += [f"{section}.{field}" for field in changes if field not in applied_now]
    return Reload(settings, tuple(applied), tuple(needs_restart))
