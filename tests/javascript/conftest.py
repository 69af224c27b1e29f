"""The example clients in JavaScript, ready to run."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
async def programs(pytestconfig: pytest.Config) -> Path:
    """The folder of the programs with their packages, which are installed once per lock file in pytest's cache."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are missing; Debian has both")
    lock = (HERE / "package-lock.json").read_bytes()
    folder = pytestconfig.cache.mkdir(f"javascript-{hashlib.sha256(lock).hexdigest()[:12]}")
    for source in (*HERE.glob("*.json"), *HERE.glob("*.mjs")):
        shutil.copyfile(source, folder / source.name)
    if not (folder / "installed").exists():
        npm = await asyncio.create_subprocess_exec(
            *("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await npm.communicate()
        if npm.returncode != 0:
            pytest.fail(f"npm could not install the packages of tests/javascript:\n{output.decode()}", pytrace=False)
        (folder / "installed").touch()
    return folder
