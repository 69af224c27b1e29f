"""A daemon as a child: it reads the settings that were written for it, and ends when it is asked to, or is ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.local.daemon_process import end_processes, settings_text
from controller.settings.load import InstanceSettings, LedgerSettings, Settings, load_settings


def test_what_is_written_is_read_as_the_same_settings(tmp_path: Path) -> None:
    settings = Settings(ledger=LedgerSettings(url="file:///a%20folder"), instance=InstanceSettings(name="one"))
    path = tmp_path / "headgate.toml"
    path.write_text(settings_text("Two lines\nof comment.", settings))

    assert settings == load_settings(path, default_instance="another")


async def test_all_are_asked_to_end_and_one_that_does_not_is_killed() -> None:
    kind, deaf, over = [
        await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE)
        for script in ("echo; exec sleep 600", "trap '' TERM; echo; exec sleep 600", "echo; exit 3")
    ]
    for process in (kind, deaf, over):
        assert process.stdout is not None
        await process.stdout.readline()
    await over.wait()

    await end_processes([deaf, kind, over], 0.2)

    assert [-15, -9, 3] == [process.returncode for process in (kind, deaf, over)]
