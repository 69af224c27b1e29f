"""Hides the packages that only tests have, in programs of a user and in the processes that these start.

Or makes the program a later version, which supports one more feature level, and whose snapshots have a new field then.

Python imports this module by its name, because `user_packages()` puts the folder on the path.
"""

import os
from importlib.machinery import PathFinder
from typing import Any

HIDDEN = frozenset(os.environ.get("HEADGATE_HIDDEN_PACKAGES", "").split())
_find_spec = PathFinder.find_spec


def find_spec(name: str, *arguments: Any) -> Any:
    return None if name.partition(".")[0] in HIDDEN else _find_spec(name, *arguments)


if later := os.environ.get("HEADGATE_LATER_LEVEL"):
    from controller.leadership.policy.feature_levels import LEVELS
    from controller.snapshots import format as snapshots

    LEVELS[int(later)] = "a field of snapshots"
    snapshots.FIELDS |= {"_Core.later"}  # type: ignore[misc]
    snapshots.FIELDS_SINCE["_Core.later"] = int(later)

PathFinder.find_spec = find_spec  # type: ignore[method-assign]
