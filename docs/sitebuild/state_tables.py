"""Turn Mermaid's state diagrams into tables: code hosts draw them with a script that this site does not load."""

import re

DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.*?)(?: - (.*))?)?$")


def with_tables(text: str) -> str:
    """Return a page with a table of transitions in place of each diagram."""
    return DIAGRAM.sub(lambda diagram: _table(diagram[1]), text)


def _table(diagram: str) -> str:
    rows = ["| state | events | next state | actions, in order |", "|---|---|---|---|"]
    for line in diagram.splitlines():
        arrow = ARROW.match(line)
        assert arrow, f"not a transition: {line}"
        before, after, events, actions = arrow.groups(default="")
        if before == "[*]":
            rows.append(f"| | | **{after}** (initial) | |")
        elif after == "[*]":
            rows.append(f"| **{before}** | | (final) | |")
        else:
            rows.append(f"| **{before}** | {events} | **{after}** | {actions} |")
    return "\n".join([*rows, ""])
