"""Writes the transition tables as a document: ``python -m tests.support.documents.state_tables``.

A test checks that docs/state-machines.md is up to date.
"""

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from controller.leadership.policy.transitions import TRANSITIONS, Role
from headgate.client.decisions.producer_session import PHASES, Phase

DOCUMENT = Path(__file__).parents[3] / "docs" / "state-machines.md"

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)
Action = TypeVar("Action", bound=StrEnum)

TEXT = """\
# State machines

Written from the transition tables by `python -m tests.support.documents.state_tables`. An event that a state does not list
changes nothing.

## Leadership of a shard

One daemon and one shard; the table and its rules are in `controller/leadership/policy/transitions.py`.

{leadership}
## Producer session

One producer and one shard; the table and its rules are in `headgate/client/decisions/producer_session.py`.

{phases}"""


def table(machine: Mapping[State, Mapping[Event, tuple[State, tuple[Action, ...]]]], start: State) -> str:
    """Return a machine as a table; transitions with the same ends and actions share a row."""
    rows = [
        "| state | events | next state | actions, in order |",
        "|---|---|---|---|",
        f"| | | **{start}** (initial) | |",
    ]
    for state, transitions in machine.items():
        events: dict[tuple[State, tuple[Action, ...]], list[Event]] = defaultdict(list)
        for event, outcome in transitions.items():
            events[outcome].append(event)
        for (after, actions), causes in events.items():
            rows.append(f"| **{state}** | {', '.join(causes)} | **{after}** | {', '.join(actions)} |")
        if not transitions:
            rows.append(f"| **{state}** | | (final) | |")
    return "\n".join([*rows, ""])


def document() -> str:
    """Return the text of docs/state-machines.md."""
    return TEXT.format(leadership=table(TRANSITIONS, Role.FOLLOWING), phases=table(PHASES, Phase.WAITING))


if __name__ == "__main__":
    DOCUMENT.write_text(document())
