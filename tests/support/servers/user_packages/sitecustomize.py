"""Hides the packages that only tests have, in programs of a user and in the processes that these start.

Python imports this module by its name, because `user_packages()` puts the folder on the path.
"""

import os
from importlib.machinery import PathFinder
from typing import Any

HIDDEN = frozenset(os.environ.get("HEADGATE_HIDDEN_PACKAGES", "").split())
_find_spec = PathFinder.find_spec


def find_spec(name: str, *arguments: Any) -> Any:
    return None if name.partition(".")[0] in HIDDEN else _find_spec(name, *arguments)


PathFinder.find_spec = find_spec  # type: ignore[method-assign]
