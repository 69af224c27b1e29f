"""Draws the pictures of docs/concepts from the program's own decisions.

`python -m tests.support.documents.concept_drawings` writes them. A test checks that they are up to date, so that a picture cannot
contradict the layout, the gate, the handover, the judgement of acknowledgements or the table of leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from controller.leadership.policy.transitions import TRANSITIONS, Event, Role
from headgate.model.entries import SubscriptionType
from headgate.model.hashing import SEGMENT_HASHES
from headgate.model.layout import Layout, Segment
from shard.balancing.handover import HandoverState, plan
from shard.balancing.target import AssignmentInput, assign
from shard.state.subscription import Holding
from shard.subscriptions.gate import compute_gate

FOLDER = Path(__file__).parents[3] / "docs" / "concepts"

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1d2327 }
text.small { font-size: 11px; fill: #50575e }
text.head { font-weight: 600 }
.paper { fill: #ffffff; stroke: #d5d8dc }
.active, .readable { fill: #cfe8d5; stroke: #17692f }
.sealed, .drained { fill: #e4e6e8; stroke: #6b737b }
.blocked { fill: #f6d9a8; stroke: #8a5a00 }
.refused { fill: #f5c6c2; stroke: #a3211b }
.line { stroke: #50575e; fill: none }
.dash { stroke: #8a939c; fill: none; stroke-dasharray: 4 4 }
.tip { fill: #50575e }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ec } text.small { fill: #b4bac0 } .paper { fill: #16191c; stroke: #3b4650 }
.active, .readable { fill: #1f4d2c; stroke: #6fcf8a } .sealed, .drained { fill: #33393f; stroke: #8a939c }
.blocked { fill: #5a4215; stroke: #e0b04f } .refused { fill: #5c2320; stroke: #f08a83 }
.line { stroke: #b4bac0 } .tip { fill: #b4bac0 }
}
</style>"""
"""A background of their own makes the pictures readable on light and dark pages."""


class Drawing:
    """One SVG picture."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title)}">'
        )
        self._parts = [STYLE, f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>']

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """Draw a rectangle with centered lines of text."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')
        first = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 16 * number, line, anchor="middle", kind="small" if number else "")

    def text(self, x: float, y: float, line: str, *, anchor: str = "start", kind: str = "") -> None:
        """Write one line."""
        named = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{named} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(line)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        """Draw a line."""
        self._parts.append(f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>')

    def arrow(self, x1: float, x2: float, y: float, label: str) -> None:
        """Draw a horizontal arrow with a label above it."""
        self.line(x1, y, x2, y)
        back = -7 if x2 > x1 else 7
        self._parts.append(f'<path class="tip" d="M{x2:g} {y:g}l{back} -4v8z"/>')
        self.text((x1 + x2) / 2, y - 6, label, anchor="middle")

    def svg(self) -> str:
        """Return the file's text."""
        return "\n".join([self._head, *self._parts, "</svg>", ""])


def history() -> list[Layout]:
    """Return the layouts of the topic in the pictures: two splits, then a merge of cousins. Times are in minutes."""
    initial = Layout.initial(1, 0)
    halves = initial.split(0, 6, 2)
    quarters = halves.split(1, 4, 4)
    return [initial, halves, quarters, quarters.merge(4, 2, {4: 3, 2: 5}, 7)]


def segments_over_time() -> str:
    """Draw each segment as a rectangle: hashes downwards, time to the right."""
    layout, end = history()[-1], 10
    left, top, minute, height = 60, 44, 62, 256
    drawing = Drawing(left + end * minute + 30, top + height + 44, "Segments of one topic over time")
    drawing.text(left, 24, "One topic: key hashes downwards, time to the right", kind="head")
    for segment in layout.segments.values():
        until = end if segment.sealed_at_ms is None else segment.sealed_at_ms
        y = top + height * segment.first_hash / SEGMENT_HASHES
        tall = height * (segment.last_hash + 1 - segment.first_hash) / SEGMENT_HASHES
        note = "active" if segment.end_offset is None else f"sealed at offset {segment.end_offset}"
        drawing.box(
            *(left + minute * segment.created_at_ms + 1, y + 1, minute * (until - segment.created_at_ms) - 2, tall - 2),
            *(segment.state, f"segment {segment.segment_id}", segment.hash_range, note),
        )
    for label, y in (("0000", top + 10), ("ffff", top + height)):
        drawing.text(left - 8, y, label, anchor="end", kind="small")
    changes: dict[int, list[Segment]] = {}
    for segment in layout.segments.values():
        if segment.sealed_at_ms is not None:
            changes.setdefault(segment.sealed_at_ms, []).append(segment)
    for at, sealed in changes.items():
        names = " and ".join(str(each.segment_id) for each in sealed)
        verb = "split of" if len(sealed) == 1 else "merge of"
        drawing.line(left + minute * at, top - 8, left + minute * at, top + height + 10, "dash")
        drawing.text(left + minute * at, top + height + 28, f"{verb} {names}", anchor="middle", kind="small")
    return drawing.svg()


GATE_POSITIONS = {0: (82, 0), 1: (42, 1), 2: (128, 1), 3: (2, 2), 4: (82, 2), 5: (112, 3)}
"""Segment → where it is drawn in a panel: x, and generation."""


def gate_panels() -> str:
    """Draw what a STREAM subscription may read after each step of its acknowledgements."""
    layout = history()[-1]
    steps: list[tuple[str, set[int]]] = [
        ("nothing acknowledged", set()),
        ("1 was empty", {1}),
        ("0 is acknowledged", {0, 1}),
        ("2 and 4 as well", {0, 1, 2, 4}),
    ]
    wide, row = 218, 62
    drawing = Drawing(wide * len(steps) + 16, 4 * row + 96, "What the gate opens")
    for column, (label, drained) in enumerate(steps):
        gate = compute_gate(layout, drained, SubscriptionType.STREAM, "strict")
        left = 14 + wide * column
        drawing.text(left, 24, f"{column + 1}. {label}", kind="head")
        places = {segment: (left + x, 44 + row * generation) for segment, (x, generation) in GATE_POSITIONS.items()}
        for segment in layout.segments.values():
            for parent in segment.parents:
                drawing.line(
                    places[parent][0] + 37,
                    places[parent][1] + 40,
                    places[segment.segment_id][0] + 37,
                    places[segment.segment_id][1],
                )
        for segment_id, (x, y) in places.items():
            kind, note = "readable", ""
            if segment_id in gate.retired:
                kind = "drained"
            elif segment_id in gate.blocked:
                kind, note = "blocked", f"by {', '.join(map(str, gate.blocked[segment_id]))}"
            drawing.box(x, y, 74, 40, kind, str(segment_id), *([note] if note else []))
    y = 4 * row + 58
    for number, (kind, meaning) in enumerate(
        (("readable", "readable"), ("blocked", "blocked by these segments"), ("drained", "drained"))
    ):
        drawing.box(14 + 110 * number + 100 * (number == 2), y, 18, 18, kind)
        drawing.text(38 + 110 * number + 100 * (number == 2), y + 14, meaning)
    return drawing.svg()


def handover_messages() -> list[tuple[str, str, str]]:
    """Play the arrival of bob at a subscription of ada; return (from, to, text) of each message, as decided."""
    segments, consumers = (1, 2), ["ada"]
    held = {segment: Holding("ada", 1) for segment in segments}
    said = [("bob", "leader", "register")]
    consumers.append("bob")
    target = assign(AssignmentInput(segments, consumers, {segment: each.consumer for segment, each in held.items()}))
    confirmed: frozenset[int] = frozenset()
    while moves := plan(HandoverState(target=target, holdings=held, consumers=consumers, confirmed=confirmed)):
        for released, reason in moves.releases:
            said.append(("leader", "leader", f"segment {released} is released: {reason}"))
            del held[released]
        for revoked in moves.revocations:
            holding = held[revoked]
            said.append(("leader", holding.consumer, f"revoke segment {revoked}"))
            said.append((holding.consumer, holding.consumer, "finishes what it has delivered"))
            said.append((holding.consumer, "leader", f"acknowledge, then confirm {revoked}"))
            held[revoked] = Holding(holding.consumer, holding.generation, revoked_at_ms=0)
            confirmed |= {revoked}
        for granted, owner in moves.grants:
            held[granted] = Holding(owner, 2)
            said.append(("leader", owner, f"grant segment {granted}, generation 2"))
    return said


def handover() -> str:
    """Draw the messages of a handover."""
    messages = handover_messages()
    places = {"ada": 110, "leader": 380, "bob": 650}
    bottom = 84 + 44 * (len(messages) + 1)
    drawing = Drawing(760, bottom + 16, "A segment moves from ada to bob")
    for name, x in places.items():
        drawing.box(x - 55, 16, 110, 30, "sealed", name)
        drawing.line(x, 46, x, bottom, "dash")
    y = 84
    for source, destination, text in messages:
        if source == destination:
            drawing.box(
                places[source] - (106 if source == "ada" else 120),
                y - 18,
                212 if source == "ada" else 240,
                28,
                "active" if source == "leader" else "blocked",
                text,
            )
        else:
            drawing.arrow(places[source], places[destination], y, text)
        y += 44
    drawing.arrow(places["ada"], places["leader"], y, "a late acknowledgement, generation 1")
    drawing.box(places["leader"] + 8, y - 14, 96, 28, "refused", "does not count")
    return drawing.svg()


def fencing() -> str:
    """Draw two leaders that want the same chunk number."""
    drawing = Drawing(760, 330, "The store lets one leader write chunk 43")
    lanes = {"daemon A": 60, "ledger": 160, "daemon B": 260}
    for name, y in lanes.items():
        drawing.text(16, y + 5, name, kind="head")
        drawing.line(96, y, 744, y, "dash")
    for place, (label, term) in enumerate(
        (("41", "epoch 4"), ("42", "epoch 4"), ("43", "term, epoch 5"), ("44", "epoch 5"))
    ):
        drawing.box(110 + 160 * place, lanes["ledger"] - 22, 110, 44, "sealed" if place < 2 else "active", label, term)
    deposed, actions = TRANSITIONS[Role.LEADING][Event.NUMBER_TAKEN]
    drawing.box(110, lanes["daemon A"] - 22, 130, 44, "readable", Role.LEADING, "creates 41 and 42")
    drawing.box(262, lanes["daemon A"] - 22, 130, 44, "blocked", "frozen", "loses its lock")
    drawing.box(414, lanes["daemon A"] - 22, 140, 44, "refused", "creates 43", Event.NUMBER_TAKEN)
    drawing.box(576, lanes["daemon A"] - 22, 160, 44, "sealed", deposed, ", ".join(actions[:2]))
    role, seen = Role.FOLLOWING, []
    for event in (Event.LOCK_ACQUIRED, Event.TERM_STARTED):
        role, _ = TRANSITIONS[role][event]
        seen.append((event, role))
    drawing.box(110, lanes["daemon B"] - 22, 130, 44, "sealed", Role.FOLLOWING, "queues for the lock")
    drawing.box(262, lanes["daemon B"] - 22, 130, 44, "blocked", seen[0][1], seen[0][0])
    drawing.box(414, lanes["daemon B"] - 22, 140, 44, "readable", seen[1][1], seen[1][0])
    drawing.line(484, lanes["daemon B"] - 22, 484, lanes["ledger"] + 22)
    drawing.line(484, lanes["daemon A"] + 22, 484, lanes["ledger"] - 22, "dash")
    drawing.text(
        16, 312, "Both want number 43. Put-if-absent lets one create it; the other learns that its term is over."
    )
    return drawing.svg()


STATIONS: tuple[tuple[str, str, str], ...] = (
    ("your source", "you", "blocked"),
    ("Producer", "sequence, digest", "readable"),
    ("leader", "window of batches", "readable"),
    ("ledger", "put-if-absent", "readable"),
    ("Consumer", "position, generation", "blocked"),
    ("your effect", "you", "blocked"),
)
"""What a record passes: name, what remembers it there, and whether headgate alone keeps it exactly once."""


def boundaries() -> str:
    """Draw where a record is stored exactly once, and where it may come twice."""
    drawing = Drawing(860, 190, "Exactly once into the ledger, at least once out of it")
    for place, (name, memory, kind) in enumerate(STATIONS):
        drawing.box(16 + 140 * place, 60, 118, 48, kind, name, memory)
        if place:
            drawing.arrow(16 + 140 * place - 22, 16 + 140 * place, 84, "")
    for first, last, text in (
        (0, 1, "named producer: resumes"),
        (1, 3, "exactly once, in order per key"),
        (3, 5, "at least once, in order per key"),
    ):
        x1, x2 = 75 + 140 * first, 75 + 140 * last
        drawing.line(x1 + 4, 132, x2 - 4, 132)
        drawing.line(x1 + 4, 126, x1 + 4, 138)
        drawing.line(x2 - 4, 126, x2 - 4, 138)
        drawing.text((x1 + x2) / 2, 156, text, anchor="middle")
    drawing.text(16, 32, "Green is headgate's own promise. Amber needs your program's part.", kind="head")
    return drawing.svg()


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "segments.svg": segments_over_time,
    "gate.svg": gate_panels,
    "handover.svg": handover,
    "fencing.svg": fencing,
    "boundaries.svg": boundaries,
}


def write(names: Iterable[str] = DRAWINGS) -> None:
    """Write the pictures into docs/concepts."""
    for name in names:
        (FOLDER / name).write_text(DRAWINGS[name]())


if __name__ == "__main__":
    write()
