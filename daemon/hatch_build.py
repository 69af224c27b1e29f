"""Gives headgate-daemon the version and the links of headgate-client, and requires exactly that version.

In a source distribution, hatchling reads all of this from PKG-INFO, and asks only for links that it has not found.
"""

import os
import runpy
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class VersionHook(MetadataHookInterface):
    """Adds the version and everything that depends on it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what ``dynamic`` announces."""
        if metadata["dynamic"] == ["urls"]:
            metadata["urls"] = {}
            return
        repository = Path(self.root).parent
        client = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
        metadata["version"] = client["version"]
        metadata["dependencies"] = [f"headgate-client=={client['version']}", *self.config["dependencies"]]
        metadata["optional-dependencies"] = self.config["optional-dependencies"]
        metadata["urls"] = runpy.run_path(str(repository / "hatch_build.py"))["project_urls"](os.environ)
