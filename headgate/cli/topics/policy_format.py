"""Parse and format a topic's policy on the command line."""

from __future__ import annotations

import re
from typing import Final

import click

from headgate.model.entries import TopicPolicy

DEFAULT: Final = "default"
"""Resets a value to the cluster's setting."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_FOREVER: Final = -1
MAX_SEGMENTS: Final = 1024


def switch(value: str) -> bool | str:
    """Return the value of ``on``, ``off`` or ``default``. Raises click.BadParameter."""
    words: dict[str, bool | str] = {"on": True, "off": False, DEFAULT: DEFAULT}
    if value not in words:
        raise click.BadParameter(f"{value!r} is not one of on, off, default")
    return words[value]


def count(value: str) -> int | str:
    """Return a number of segments, or ``default``. Raises click.BadParameter."""
    if value == DEFAULT:
        return DEFAULT
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_SEGMENTS:
        raise click.BadParameter(f"{value!r}: write a number from 1 to {MAX_SEGMENTS}, or default")
    return int(value)


def retention(value: str) -> int | str:
    """Return a duration in milliseconds, -1 for ``none``, or ``default``. Raises click.BadParameter."""
    if value in ("none", DEFAULT):
        return _FOREVER if value == "none" else DEFAULT
    parts = _DURATION.fullmatch(value)
    if parts is None:
        raise click.BadParameter(f"{value!r}: write a number and a unit (30s, 15m, 12h, 7d, 2w), none, or default")
    return int(parts[1]) * _UNITS_MS[parts[2]]


def duration(milliseconds: int) -> str:
    """Format a duration in the largest unit, up to days, that divides it."""
    for unit in "dhms":
        if milliseconds and milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds / 1000:g}s"


def policy_line(policy: TopicPolicy) -> str:
    """Format the values that a topic overrides like the options of `headgate topic set`; empty if there are none."""
    words = []
    for option, value in (("auto-split", policy.auto_split), ("auto-merge", policy.auto_merge)):
        if value is not None:
            words.append(f"{option} {'on' if value else 'off'}")
    for option, number in (("min-segments", policy.min_segments), ("max-segments", policy.max_segments)):
        if number is not None:
            words.append(f"{option} {number}")
    if policy.retention_ms is not None:
        words.append(f"retention {'none' if policy.retention_ms == _FOREVER else duration(policy.retention_ms)}")
    return f"policy: {', '.join(words)}" if words else ""
