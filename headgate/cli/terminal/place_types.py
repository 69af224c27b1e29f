"""The types of arguments that name a file, a folder or a URL.

An empty text is refused. It is what a script passes whose variable is not set, and would be the present folder.
"""

from pathlib import Path
from typing import Any

import click

_EMPTY = "it is empty: is a variable of your script not set?"


class FilePath(click.Path):
    """A path, as a `pathlib.Path`."""

    def __init__(self, **checks: bool) -> None:
        super().__init__(path_type=Path, **checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return ``value`` as a path after the checks of `click.Path`."""
        if value == "":
            self.fail(_EMPTY, param, ctx)
        return super().convert(value, param, ctx)


class Url(click.ParamType[str]):
    """The URL of a store, or a folder, or a table."""

    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value``, which its reader checks."""
        return str(value) or self.fail(_EMPTY, param, ctx)
