"""A daemon as a child of this process: its settings as a file, `headgate run` on it, and its end.

`headgate up` starts its further daemons so, and the demo, the figures and the tests all of theirs. Who watches over the
child, and when it is replaced, is not decided here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from controller.settings.load import Settings
from controller.settings.toml_text import toml_text
from headgate.parent_death_signal import with_parent_death_signal


def settings_text(comment: str, settings: Settings) -> str:
    """Return the TOML document that `headgate run --config` reads as ``settings``."""
    sections = {name: msgspec.structs.asdict(getattr(settings, name)) for name in settings.__struct_fields__}
    return toml_text(comment, {}, sections)


async def start_daemon(config: Path, log_path: Path) -> asyncio.subprocess.Process:
    """Start a daemon with the settings in ``config``; what it says is added to ``log_path``. It dies with us."""
    with log_path.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *with_parent_death_signal(sys.executable, "-m", "controller", "run", "--config", str(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # A Ctrl-C at the terminal is for this process, which then stops the others in order.
            start_new_session=True,
        )


async def end_processes(processes: Iterable[asyncio.subprocess.Process], stop_seconds: float) -> None:
    """Ask all of them to end, and wait until they have; one that has not after ``stop_seconds`` is killed."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            async with asyncio.timeout(stop_seconds):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
