"""A topic as text: its segments as a tree, and its policy as the options that set it. Pure.

Roots and children are sorted by key-hash range. A merged segment is drawn below its first parent; every other parent
gets an arrow to it. Pruned parents no longer exist, so their children are roots. A bar below the tree shows the
key-hash range of each active segment. Segments of an external topic have their names at the source.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from headgate.cli.terminal.output import format_bytes
from headgate.model.entries import TopicPolicy
from headgate.views.topics import SegmentInfo, TopicImportResult, TopicInfo

DEFAULT: Final = "default"
"""Resets a value to the cluster's setting."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_BYTES: Final = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NUMBER = re.compile(r"([0-9]{1,19})([A-Za-z]*)")
_FOREVER: Final = -1
_WORDS: Final[dict[str, int | str]] = {"none": _FOREVER, DEFAULT: DEFAULT}
MAX_SEGMENTS: Final = 1024
HASH_BAR_CELLS = 64
_HASHES = 65_536


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


def draw_topic(topic: TopicInfo) -> list[str]:
    active = [segment for segment in topic.segments if segment.state == "active"]
    sealed = len(topic.segments) - len(active)
    counts = f"{len(active)} active" + (f", {sealed} sealed" if sealed else "")
    head = f"{topic.topic}: {counts}; shard {topic.shard}, layout epoch {topic.layout_epoch}"
    if topic.external is not None:
        head += f"; external, positions are {topic.external.positions}"
        head += f", source {topic.external.source}" if topic.external.source else ""
    rows = [("segment", "hashes", "state", "records", "size", "")]
    rows += [_row(tree, segment) for tree, segment in _forest(topic.segments)]
    widths = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
    lines = [head, ""]
    for row in rows:
        tree, hashes, state, note = (row[column].ljust(widths[column]) for column in (0, 1, 2, 5))
        records, size = (row[column].rjust(widths[column]) for column in (3, 4))
        lines.append(f"{tree}  {hashes}  {state}  {records}  {size}  {note}".rstrip())
    if topic.external is None or topic.external.hash_bits:
        lines += ["", f"0000 {_hash_range_bar(active)} ffff"]
    lines += ["", "subscriptions: " + (", ".join(topic.subscriptions) or "none")]
    if topic.policy != TopicPolicy():
        lines.append(policy_line(topic.policy))
    return lines


def import_lines(answer: TopicImportResult, *, dry_run: bool) -> list[str]:
    would = "would be " if dry_run else ""
    lines = [
        f"{would}{what}: {', '.join(labels)}"
        for what, labels in (("created", answer.created), ("sealed", answer.sealed))
        if labels
    ]
    if answer.expired_parents:
        lines.append(f"expired at the source with all their records: {', '.join(answer.expired_parents)}")
    return lines or ["no change: the topic matches its source"]


def _row(tree: str, segment: SegmentInfo | None) -> tuple[str, str, str, str, str, str]:
    if segment is None:
        return (tree, "", "", "", "", "")
    note = f"merged from {' and '.join(map(str, segment.parents))}" if len(segment.parents) > 1 else ""
    hashes = f"{segment.first_hash:04x}-{segment.last_hash:04x}"
    if segment.label is not None:
        # Only the source knows records and size.
        return (tree, hashes, segment.state, "", "", f"{segment.label}  {note}".rstrip())
    return (tree, hashes, segment.state, str(segment.next_offset), format_bytes(segment.size_bytes), note)


def _forest(segments: Sequence[SegmentInfo]) -> list[tuple[str, SegmentInfo | None]]:
    """Return (tree cell, segment) in drawing order; None for an arrow to a segment drawn elsewhere."""
    known = {segment.segment: segment for segment in segments}
    parents = {
        segment.segment: sorted(
            (parent for parent in segment.parents if parent in known), key=lambda parent: known[parent].first_hash
        )
        for segment in segments
    }
    drawn: list[tuple[str, SegmentInfo | None]] = []
    roots = sorted(
        (segment for segment in segments if not parents[segment.segment]),
        key=lambda segment: (segment.first_hash, segment.segment),
    )
    # (segment, fork before its name, lines before its children, drawn here). A stack, because depth is unlimited.
    waiting = [(root, "", "", True) for root in reversed(roots)]
    while waiting:
        segment, before, below, here = waiting.pop()
        if not here:
            drawn.append((f"{before}→ {segment.segment}", None))
            continue
        drawn.append((f"{before}{segment.segment}", segment))
        children = sorted(
            (known[child] for child in segment.children if child in known), key=lambda child: child.first_hash
        )
        for child in reversed(children):
            fork, lines = ("└─ ", "   ") if child is children[-1] else ("├─ ", "│  ")
            first_parent = parents[child.segment][0] == segment.segment
            waiting.append((child, below + fork, below + lines, first_parent))
    return drawn


def _hash_range_bar(active: list[SegmentInfo]) -> str:
    """Return the key-hash range as one bar, with the number of each active segment where it fits."""
    bar = ["─"] * HASH_BAR_CELLS
    for segment in active:
        first = segment.first_hash * HASH_BAR_CELLS // _HASHES
        end = (segment.last_hash + 1) * HASH_BAR_CELLS // _HASHES
        bar[first] = "├"
        name, width = str(segment.segment), end - first - 1
        if len(name) <= width:
            start = first + 1 + (width - len(name)) // 2
            bar[start : start + len(name)] = list(name)
    return "".join(bar) + "┤"
