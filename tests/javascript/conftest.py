"""The client in JavaScript, installed as a user installs it, with its examples."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers.npm_packages import npm_packages
from tests.support.source_folders import ROOT

CLIENT = ROOT / "clients" / "javascript"


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> Path:
    """The folder of the examples. It has the packages of the lock file, whose hashes npm checks, and the packed client."""
    folder = npm_packages(CLIENT, pytestconfig)
    packed = subprocess.run(
        ("npm", "pack", "--silent", "--pack-destination", str(folder), str(CLIENT)), check=True, capture_output=True
    )
    installed = folder / "node_modules" / "@headgate" / "client"
    shutil.rmtree(installed, ignore_errors=True)
    installed.mkdir(parents=True)
    archive = folder / packed.stdout.decode().split()[-1]
    subprocess.run(("tar", "-xzf", str(archive), "-C", str(installed), "--strip-components=1"), check=True)
    # A program inside of a package with this name would import that package itself.
    programs = folder / "programs"
    shutil.copytree(CLIENT / "examples", programs, dirs_exist_ok=True)
    (programs / "package.json").write_text('{"type": "module"}')
    return programs
