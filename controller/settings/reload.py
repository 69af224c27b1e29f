"""What of a changed file of settings a running daemon takes over, and what waits for a restart.

Values in, values out: nothing is read, applied or logged here. What is not in `AT_RUN_TIME` is built into connections,
locks and state when the daemon starts, and stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from controller.settings.load import RetentionSettings, ScalingSettings, Settings

AT_RUN_TIME = (
    "ingest.pipelining",
    "ingest.mqtt_devices",
    *(f"scaling.{field}" for field in ScalingSettings.__struct_fields__),
    *(f"retention.{field}" for field in RetentionSettings.__struct_fields__),
    "log.level",
)
"""Settings that change while the daemon runs."""


@dataclass(frozen=True, slots=True)
class Reload:
    """The settings to go on with, and what was made of each difference (``section.field``, in the file's order)."""

    settings: Settings
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reloaded(running: Settings, read: Settings) -> Reload:
    """Compare the settings that a daemon runs with to those that it has read just now."""
    settings, applied, needs_restart = running, [], []
    for section in running.__struct_fields__:
        before, after = getattr(running, section), getattr(read, section)
        changes = {
            field: getattr(after, field)
            for field in before.__struct_fields__
            if getattr(before, field) != getattr(after, field)
        }
        taken = {field: value for field, value in changes.items() if f"{section}.{field}" in AT_RUN_TIME}
        settings = settings.replace(**{section: msgspec.structs.replace(before, **taken)})
        applied += [f"{section}.{field}" for field in taken]
        needs_restart += [f"{section}.{field}" for field in changes if field not in taken]
    return Reload(settings, tuple(applied), tuple(needs_restart))
