"""Read a point in time that a person or a program has written, and write one for a table. Pure.

Every command and every input reads times here: an ISO 8601 text with its UTC offset, or a number since 1970 with its
unit. Fractions of a millisecond are dropped. A time outside `PLAUSIBLE_MS` is an error: a number in a wrong unit is
years away without a notice.
"""

import contextlib
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import floor
from typing import Final, Literal

TimeUnit = Literal["s", "ms", "us", "ns"]
UNITS_PER_SECOND: Final[dict[TimeUnit, int]] = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
PLAUSIBLE_MS: Final = range(631_152_000_000, 4_102_444_800_000)
"""From 1990 up to 2100. A time of these years in another unit is outside."""
EXAMPLES: Final = "2026-01-31T18:00:00Z or 1769882400s"
TIME_HELP: Final = f"A TIME is {EXAMPLES}: in ISO 8601, or a number since 1970 with its unit (s, ms, us or ns)."
"""For the help of every option that takes a time."""
_NUMBER: Final = re.compile(r"(?P<number>-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?)(?P<unit>[mun]?s)?")
_MAX_SHOWN: Final = 40
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(text: str, default_unit: TimeUnit | None = None) -> int:
    """Return a time as milliseconds since 1970.

    ``default_unit``: of a number without a unit; None: it must have one. Raises ValueError, whose text says what is
    wrong and gives an example.
    """
    try:
        return _number_ms(found, default_unit) if (found := _NUMBER.fullmatch(text)) else _iso_ms(text)
    except _NotATimeError as error:
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        raise ValueError(f"{shown!r} {error}; write for example {EXAMPLES}") from None


def is_plausible(at_ms: Decimal | int) -> bool:
    """Whether a time in milliseconds since 1970 can be meant as such."""
    return PLAUSIBLE_MS.start <= at_ms < PLAUSIBLE_MS.stop


class _NotATimeError(Exception):
    """The text says what is wrong."""


def _number_ms(found: re.Match[str], default_unit: TimeUnit | None) -> int:
    unit: TimeUnit | None = found["unit"] or default_unit  # type: ignore[assignment]  # one of them, as in the pattern
    if unit is None:
        raise _NotATimeError("has no unit")
    with contextlib.suppress(ArithmeticError):
        at_ms = Decimal(found["number"]) * 1000 / UNITS_PER_SECOND[unit]
        if is_plausible(at_ms):
            return floor(at_ms)
    raise _NotATimeError(f"is not between 1990 and 2100 in {unit} (in another unit?)")


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _NotATimeError("is not a time") from None
    if moment.tzinfo is None:
        raise _NotATimeError("has no time zone (Z for UTC, or an offset such as +01:00)")
    at_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if not is_plausible(at_ms):
        raise _NotATimeError("is not between 1990 and 2100")
    return at_ms


def utc_minute(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def iso_time(at_ms: int) -> str:
    """Return ``2026-01-31T18:00:00.000Z``, or the number if no calendar has such a time."""
    try:
        moment = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:  # A producer may set any number.
        return str(at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of_day(at_ms: int) -> str:
    """Return ``22:31:05 UTC``."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """Return ``seconds`` as ``0.4 s``, ``12 s``, ``3 min``, ``2 h`` or ``3 days``."""
    if seconds < 1:
        return f"{max(seconds, 0):.1f} s"
    for unit, length, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
