"""Gives headgate-daemon the version of headgate, and requires exactly that one.

A build from a source distribution does not run this for the version: hatchling reads PKG-INFO there.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class VersionHook(MetadataHookInterface):
    """Adds the version and everything that depends on it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what ``dynamic`` announces."""
        headgate = tomllib.loads((Path(self.root).parent / "pyproject.toml").read_text())["project"]
        metadata["version"] = headgate["version"]
        metadata["dependencies"] = [f"headgate=={headgate['version']}", *self.config["dependencies"]]
        metadata["optional-dependencies"] = self.config["optional-dependencies"]
