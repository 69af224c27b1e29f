"""Start a daemon as a child process: `headgate run` with a settings file of its own."""

from collections.abc import Mapping
from pathlib import Path

from headgate.process.child_command import python_module
from headgate.process.child_process import ChildProcess


async def start_daemon(config: Path, log_path: Path, environ: Mapping[str, str] | None = None) -> ChildProcess:
    """Start a daemon with the settings in ``config``; it appends its log to ``log_path`` and dies with this process."""
    return await ChildProcess.start(
        *python_module("controller", "run", "--config", str(config)), log_path=log_path, environ=environ
    )
