"""Validate a listing of a source's segments: each segment, and the graph they form.

The rules are those of shard.requests.topic_import. A LayoutError names the segment.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.external_topic import OPAQUE_END_OFFSET, Hashes, parse_hashes
from headgate.model.text import listed as shortened
from headgate.protocol.request_fields import LABEL_PATTERN
from headgate.protocol.requests import ImportTopic, SegmentImport
from shard.steps import Steps

COST_PER_SEGMENT: Final = 2
_LABEL: Final = re.compile(LABEL_PATTERN)


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A segment in the graph after the import."""

    label: str
    hashes: Hashes | None
    parents: tuple[int, ...]
    sealed: bool
    new: bool = False
    all_parents: bool = True
    """Whether every parent that the source names is in the graph."""


def step_cost(request: ImportTopic) -> int:
    """Return the cost of each step that looks at all segments."""
    return len(request.segments) * COST_PER_SEGMENT


def index_listing(request: ImportTopic) -> Steps[dict[str, SegmentImport]]:
    """Return the segments by name, parents first; rule 1, and rule 2 for each segment."""
    yield step_cost(request)
    listed: dict[str, SegmentImport] = {}
    for item in request.segments:
        label = item.segment
        if label in listed:
            raise LayoutError(f"segment {label!r} is listed twice")
        listed[label] = item
        if len(set(item.parents)) != len(item.parents):
            raise LayoutError(f"segment {label!r} names a parent twice: {shortened(item.parents)}")
        if request.positions == "opaque" and item.end_offset is not None:
            raise LayoutError(f"segment {label!r} has an end_offset, but positions are opaque: set sealed instead")
        if request.positions == "offsets" and item.sealed and item.end_offset is None:
            raise LayoutError(f"segment {label!r} is sealed and has no end_offset")
        _check_hashes(item, request.hash_bits)
    yield step_cost(request)
    for label, item in listed.items():
        for parent in item.parents:
            if parent not in listed and not _LABEL.match(parent):
                raise LayoutError(f"segment {label!r} has the parent {parent!r}: give printable ASCII without spaces")
    return (yield from _parents_first(listed, step_cost(request)))


def _check_hashes(item: SegmentImport, hash_bits: int) -> None:
    if (item.hashes is None) != (hash_bits == 0):
        fault = "has no hashes" if item.hashes is None else "has hashes"
        raise LayoutError(f"segment {item.segment!r} {fault}, but the listing says hash_bits = {hash_bits}")
    if (hashes := parse_hashes(item.hashes)) is not None:
        first, last = hashes
        if not first <= last < 1 << hash_bits:
            raise LayoutError(
                f"segment {item.segment!r} has hashes {first} to {last}: give first ≤ last < 2^{hash_bits}"
            )


def end_of(item: SegmentImport, positions: e.Positions) -> int | None:
    """Return the end offset of a sealed segment; None for an active one."""
    if positions == "opaque":
        return OPAQUE_END_OFFSET if item.sealed else None
    return item.end_offset


def _parents_first(listed: Mapping[str, SegmentImport], cost: int) -> Steps[dict[str, SegmentImport]]:
    """Return them in topological order, then alphabetically: three steps, linear in segments and parents."""
    yield cost
    parents = {label: [parent for parent in item.parents if parent in listed] for label, item in listed.items()}
    yield cost
    waits_for = {label: len(found) for label, found in parents.items()}
    children: defaultdict[str, list[str]] = defaultdict(list)
    for label, found in parents.items():
        for parent in found:
            children[parent].append(label)
    yield cost
    ordered: list[str] = []
    ready = sorted(label for label, count in waits_for.items() if not count)
    while ready:
        ordered += ready
        opened: list[str] = []
        for label in ready:
            for child in children.get(label, ()):
                waits_for[child] -= 1
                if not waits_for[child]:
                    opened.append(child)
        ready = sorted(opened)
    if len(ordered) < len(listed):
        waiting = sorted(listed.keys() - set(ordered))
        raise LayoutError(f"these segments are in a cycle, or descend from one: {shortened(waiting)}")
    return {label: listed[label] for label in ordered}


def check_graph(nodes: Mapping[int, GraphNode], hash_bits: int) -> None:
    """Rules 3, 4 and 5."""
    for node in nodes.values():
        for parent in node.parents:
            if not nodes[parent].sealed:
                raise LayoutError(f"segment {nodes[parent].label!r} is active, but has the child {node.label!r}")
        if node.new and node.hashes is not None:
            inherited = [hashes for parent in node.parents if (hashes := nodes[parent].hashes) is not None]
            _check_inherited(node, node.hashes, inherited)
    if hash_bits:
        _check_tiling([node for node in nodes.values() if not node.sealed], hash_bits)


def _check_inherited(node: GraphNode, hashes: Hashes, inherited: list[Hashes]) -> None:
    first, last = hashes
    for parent in inherited:
        if parent[1] < first or last < parent[0]:
            raise LayoutError(
                f"segment {node.label!r} ({range_text(hashes)}) shares no hash with a parent ({range_text(parent)})"
            )
    covered = first
    for parent in sorted(inherited):
        if parent[0] <= covered:
            covered = max(covered, parent[1] + 1)
    if inherited and node.all_parents and covered <= last:
        raise LayoutError(f"segment {node.label!r} ({range_text(hashes)}) has hash {covered}, which no parent had")


def _check_tiling(active: Iterable[GraphNode], hash_bits: int) -> None:
    expected, before = 0, ""
    for node in sorted(active, key=lambda node: node.hashes or (0, 0)):
        assert node.hashes is not None, f"segment {node.label!r} has no hashes"
        if node.hashes[0] < expected:
            raise LayoutError(f"segments {before!r} and {node.label!r} are both active and share hash {node.hashes[0]}")
        if node.hashes[0] > expected:
            raise LayoutError(f"hash {expected} has no active segment; the next one is {node.label!r}")
        expected, before = node.hashes[1] + 1, node.label
    if expected != 1 << hash_bits:
        raise LayoutError(f"hash {expected} has no active segment; the hashes end at 2^{hash_bits} - 1")


def range_text(hashes: Hashes | None) -> str:
    return "none" if hashes is None else f"{hashes[0]} to {hashes[1]}"
