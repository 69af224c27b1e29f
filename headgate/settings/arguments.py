"""Check the arguments of a program where they enter: types, durations, ports and choices.

Pure. A duration that is NaN never ends a wait, and one of 1e-320 s ends it before it begins, so
both are errors and not very long or short waits.
"""

import math
from collections.abc import Sequence
from numbers import Real
from operator import index
from typing import Final, SupportsIndex

from headgate.errors import ConfigError
from headgate.model.time_text import is_plausible

SHORTEST_SECONDS: Final = 0.001
LONGEST_SECONDS: Final = 31_536_000.0
"""A year. The settings of the daemon have the same limit."""
HIGHEST_PORT: Final = 65_535


def is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= HIGHEST_PORT


def require_seconds(name: str, value: float, *, at_least: float = SHORTEST_SECONDS) -> float:
    """Return ``value`` if it is a duration from ``at_least`` seconds to a year.

    Raises ConfigError: its text names the argument and the limits.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not at_least <= value <= LONGEST_SECONDS:
        raise ConfigError(f"{name}={value!r:.60}: use {at_least:g} to {LONGEST_SECONDS:.0f} seconds")
    return value


def require_integer(name: str, value: object, advice: str = "") -> int:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, SupportsIndex)):  # a slow check
        raise ConfigError(f"{name}={value!r:.60} has to be an integer{advice}")
    return index(value)


def require_time_ms(name: str, value: object) -> None:
    """Raise ConfigError if ``value`` is no plausible time in milliseconds since 1970."""
    if not is_plausible(require_integer(name, value, ", in milliseconds; int(1000 * TIME.timestamp())")):
        raise ConfigError(f"{name}={value} is not between 1990 and 2100 in milliseconds")


def require_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Raise ConfigError if ``value`` is not one of ``choices``; None means that the argument may be omitted."""
    if value not in choices:
        named = " or ".join(repr(choice) for choice in choices if choice is not None)
        raise ConfigError(f"{name}={value!r}: use {named}{', or omit it' if None in choices else ''}")


def require_count(name: str, value: object, at_most: float = math.inf) -> None:
    if not 1 <= require_integer(name, value) <= at_most:
        raise ConfigError(f"{name}={value} has to be 1 {'or more' if at_most == math.inf else f'to {at_most}'}")


def require_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r:.60} is of type {type(value).__name__}: use a {kind.__name__}")
