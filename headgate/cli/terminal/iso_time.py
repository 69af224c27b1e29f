"""Read a point in time that a person or a program has written, and write one for a table. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time_ms(text: str) -> int:
    """Return an ISO 8601 time with a UTC offset as milliseconds since 1970.

    Raises ValueError, whose text says what is wrong and gives an example.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write for example 2026-01-31T18:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC, or an offset such as +01:00")
    at_ms = round(moment.timestamp() * 1000)
    if at_ms < 0:
        raise ValueError(f"{text!r} is before 1970")
    return at_ms


def utc_day(at_ms: int) -> str:
    """Return a day in UTC for a narrow table."""
    return utc_minute(at_ms)[:10]


def utc_minute(at_ms: int) -> str:
    """Return a time in UTC for a table."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"
