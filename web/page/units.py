"""Formats values for people: counts, rates, sizes and durations. Pure.

``-`` is a value that is unknown or does not exist.
"""

from typing import Final

from headgate.model.time_text import duration as known_duration

UNKNOWN: Final = "-"
_THOUSAND: Final = 1000
_EXACT_BELOW: Final = 10_000
_ONE_DIGIT_BELOW: Final = 100


def count(value: int | None, *, estimated: bool = False) -> str:
    """Return ``950``, ``9 999``, ``12.3 k`` or ``4.56 M``; ``~`` precedes an estimate."""
    if value is None:
        return UNKNOWN
    text = f"{value:,}".replace(",", " ") if value < _EXACT_BELOW else _scaled(value)
    return f"~{text}" if estimated else text


def rate(per_second: float | None) -> str:
    """Return ``0/s``, ``0.3/s``, ``12/s`` or ``1.2 k/s``."""
    if per_second is None:
        return UNKNOWN
    if per_second >= _THOUSAND:
        return f"{_scaled(per_second)}/s"
    return f"{per_second:.1f}/s" if 0 < per_second < 10 else f"{per_second:.0f}/s"  # noqa: PLR2004


def size(size_bytes: int | None) -> str:
    """Return ``950 B`` or ``1.2 MB``, in powers of a thousand."""
    if size_bytes is None:
        return UNKNOWN
    return f"{size_bytes} B" if size_bytes < _THOUSAND else f"{_scaled(size_bytes, ('kB', 'MB', 'GB', 'TB', 'PB'))}"


def duration(seconds: float | None) -> str:
    """Return a duration as the command line shows it."""
    return UNKNOWN if seconds is None else known_duration(seconds)


def age_seconds(since_ms: int | None, as_of_ms: int) -> float:
    """Return the time since ``since_ms``; 0 if it is unknown, or in the future by another clock."""
    return 0.0 if since_ms is None else max(0, as_of_ms - since_ms) / 1000


def plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _scaled(value: float, units: tuple[str, ...] = ("k", "M", "G", "T", "P")) -> str:
    scaled = value / _THOUSAND
    for unit in units[:-1]:
        if scaled < _THOUSAND * 0.9995:
            return f"{scaled:.3g} {unit}" if scaled < _ONE_DIGIT_BELOW else f"{scaled:.0f} {unit}"
        scaled /= _THOUSAND
    return f"{scaled:,.0f} {units[-1]}".replace(",", " ")
