"""Draws the transition tables as Mermaid diagrams: ``python -m tests.support.documents.state_diagrams`` writes the document.

A test checks that docs/state-machines.md is up to date.
"""

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from controller.leadership.policy.transitions import TRANSITIONS, Role
from headgate.client.decisions.session_transitions import PHASES, Phase

DOCUMENT = Path(__file__).parents[3] / "docs" / "state-machines.md"

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)
Action = TypeVar("Action", bound=StrEnum)

TEXT = """\
# State machines

Drawn from the transition tables by `python -m tests.support.documents.state_diagrams`. A transition has one or more events, and
actions in their order, in a diagram after a dash. An event that a state does not list changes nothing.

## Leadership of a shard

One daemon and one shard; the table and its rules are in `controller/leadership/policy/transitions.py`.

{leadership}
## Producer session

One producer and one shard; the table is in `headgate/client/decisions/session_transitions.py`, the rules in
`headgate/client/decisions/producer_session.py`.

{phases}"""


def diagram(table: Mapping[State, Mapping[Event, tuple[State, tuple[Action, ...]]]], start: State) -> str:
    """Return ``table`` as a Mermaid diagram; transitions with the same ends and actions share an arrow."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    for state, transitions in table.items():
        events: dict[tuple[State, tuple[Action, ...]], list[Event]] = defaultdict(list)
        for event, outcome in transitions.items():
            events[outcome].append(event)
        for (after, actions), causes in events.items():
            label = ", ".join(causes) + (f" - {', '.join(actions)}" if actions else "")
            lines.append(f"    {state} --> {after}: {label}")
        if not transitions:
            lines.append(f"    {state} --> [*]")
    return "\n".join([*lines, "```", ""])


def document() -> str:
    """Return the text of docs/state-machines.md."""
    return TEXT.format(leadership=diagram(TRANSITIONS, Role.FOLLOWING), phases=diagram(PHASES, Phase.WAITING))


if __name__ == "__main__":
    DOCUMENT.write_text(document())
