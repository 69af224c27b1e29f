"""The type of an option that is a duration in seconds."""

import click

from headgate.errors import ConfigError
from headgate.settings.arguments import SHORTEST_SECONDS, require_seconds


class Seconds(click.ParamType[float]):
    """A number of seconds up to a year. click's own ranges accept NaN."""

    name = "seconds"

    def __init__(self, at_least: float = SHORTEST_SECONDS) -> None:
        self._at_least = at_least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return ``value`` as a number; the error names the limits."""
        try:
            return require_seconds("the duration", float(str(value)), at_least=self._at_least)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
