"""Parse and format a topic's policy on the command line."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import click

from headgate.model.entries import TopicPolicy

DEFAULT: Final = "default"
"""Resets a value to the cluster's setting."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_BYTES: Final = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NUMBER = re.compile(r"([0-9]{1,19})([A-Za-z]*)")
_FOREVER: Final = -1
_WORDS: Final[dict[str, int | str]] = {"none": _FOREVER, DEFAULT: DEFAULT}
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


def max_age(value: str) -> int | str:
    """Return a duration in milliseconds, -1 for ``none``, or ``default``. Raises click.BadParameter."""
    return _limit(value, _UNITS_MS, "30s, 15m, 12h, 7d, 2w")


def max_bytes(value: str) -> int | str:
    """Return a number of bytes, -1 for ``none``, or ``default``. Raises click.BadParameter."""
    return _limit(value, _UNITS_BYTES, "500MB, 10GB, 2TB")


def _limit(value: str, units: Mapping[str, int], examples: str) -> int | str:
    if value in _WORDS:
        return _WORDS[value]
    parts = _NUMBER.fullmatch(value)
    if parts is None or parts[2] not in units:
        raise click.BadParameter(f"{value!r}: write a number and a unit ({examples}), none, or default")
    if (limit := int(parts[1]) * units[parts[2]]) >= 2**63:
        raise click.BadParameter(f"{value!r} is too large; none means no limit")
    return limit


def bytes_text(count: int) -> str:
    for unit in ("TB", "GB", "MB", "kB"):
        if count and count % _UNITS_BYTES[unit] == 0:
            return f"{count // _UNITS_BYTES[unit]}{unit}"
    return str(count)


def duration(milliseconds: int) -> str:
    """Format a duration in the largest unit, up to days, that divides it."""
    for unit in "dhms":
        if milliseconds and milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds / 1000:g}s"


def option_values(policy: TopicPolicy) -> dict[str, str]:
    """Return the options of `headgate topic set` that would set what ``policy`` has, with their values."""
    texts: dict[str, tuple[str, Callable[[int], str]]] = {
        "auto_split": ("auto-split", _on_off),
        "auto_merge": ("auto-merge", _on_off),
        "ignore_subscriptions": ("ignore-subscriptions", _on_off),
        "min_segments": ("min-segments", str),
        "max_segments": ("max-segments", str),
        "max_age_ms": ("max-age", duration),
        "max_bytes": ("max-bytes", bytes_text),
    }
    return {
        option: "none" if value == _FOREVER else text(value)
        for field, (option, text) in texts.items()
        if (value := getattr(policy, field)) is not None
    }


def _on_off(value: int) -> str:
    return "on" if value else "off"


def policy_line(policy: TopicPolicy) -> str:
    """Format the values that a topic overrides like the options of `headgate topic set`; empty if there are none."""
    words = [f"{option} {value}" for option, value in option_values(policy).items()]
    return f"policy: {', '.join(words)}" if words else ""
