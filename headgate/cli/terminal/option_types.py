"""Types of options and arguments: a file, a folder, a URL, a duration in seconds.

An empty text is refused. It is what a script passes whose variable is not set, and would be the present folder.
"""

from pathlib import Path
from typing import Any

import click

from headgate.errors import ConfigError
from headgate.settings.arguments import SHORTEST_SECONDS, require_seconds

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


class Seconds(click.ParamType[float]):
    """A number of seconds up to a year. click's own ranges accept NaN."""

    name = "seconds"

    def __init__(self, at_least: float = SHORTEST_SECONDS) -> None:
        self._at_least = at_least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return ``value`` as a number; the error names the limits."""
        try:
            return require_seconds("seconds", float(str(value)), at_least=self._at_least)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
