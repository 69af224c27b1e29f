"""Packages of npm, installed once per lock file in pytest's cache."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest


def npm_packages(source: Path, config: pytest.Config) -> Path:
    """Return a folder with the files of ``source`` and the packages of its lock; skip without npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are missing; Debian has both")
    digest = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()
    folder = config.cache.mkdir(f"{source.name}-{digest[:12]}")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for file in (*source.glob("*.json"), *source.glob("*.mjs")):
            shutil.copyfile(file, folder / file.name)
        if not (folder / "installed").exists():
            npm = subprocess.run(
                ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"),
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if npm.returncode != 0:
                pytest.fail(f"npm could not install the packages of {source}:\n{npm.stdout.decode()}", pytrace=False)
            (folder / "installed").touch()
    return folder
