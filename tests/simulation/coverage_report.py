"""What simulated runs have covered: verdicts of leaders, transitions of state machines, branches of policy code.

A branch is the body of an ``if``, ``elif``, ``else``, ``case``, loop or ``except``. It is covered if its first line was
executed; that a condition without ``else`` was false is not counted. Policy code is what the mutation tests change.
Lines are traced, which takes three times as long, so a long run traces some of its seeds.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from controller.leadership.transitions import TRANSITIONS
from headgate.client.decisions.session_transitions import NUMBERINGS, PHASES
from metrics.label_values import BatchVerdict
from tests.mutation.targets import PACKAGES, modules_of

ROOT = Path(__file__).parents[2]
TABLES: Mapping[str, dict[Any, dict[Any, Any]]] = {
    "leadership": TRANSITIONS,
    "producer session": PHASES,
    "numbering of a producer": NUMBERINGS,
}


class CoveredPolicy:
    """Collects what runs cover, and reports it."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self._transitions: dict[str, set[tuple[str, str]]] = {name: set() for name in TABLES}
        self._modules = {
            str(ROOT / f"{name.replace('.', '/')}.py"): name for p in PACKAGES for name in modules_of(p, ROOT)
        }
        self._lines: dict[str, set[int]] = {path: set() for path in self._modules}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace policy code and state machines until the block ends."""
        plain = {name: dict(table) for name, table in TABLES.items()}
        for name, table in TABLES.items():
            for state, row in plain[name].items():
                table[state] = _Recorded(
                    row, lambda event, n=name, s=state: self._transitions[n].add((str(s), str(event)))
                )  # type: ignore[misc]
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            for name, table in TABLES.items():
                table.update(plain[name])

    def report(self) -> dict[str, Any]:
        """Return what was covered, and what was not."""
        branches = {name: branches_of(Path(path).read_text()) for path, name in self._modules.items()}
        covered = {name: branches[name] & self._lines[path] for path, name in self._modules.items()}
        every = {
            name: {(str(s), str(event)) for s, row in table.items() for event in row} for name, table in TABLES.items()
        }
        return {
            "verdicts": dict(sorted(self.verdicts.items())),
            "verdicts_missing": sorted(set(get_args(BatchVerdict)) - set(self.verdicts)),
            "transitions": {
                name: f"{len(self._transitions[name] & every[name])}/{len(every[name])}" for name in TABLES
            },
            "transitions_missing": {
                name: sorted(" on ".join(pair) for pair in every[name] - self._transitions[name]) for name in TABLES
            },
            "branches": f"{sum(map(len, covered.values()))}/{sum(map(len, branches.values()))}",
            "branches_missing": {
                name: sorted(lines - covered[name]) for name, lines in branches.items() if lines - covered[name]
            },
        }

    def _trace(self, frame: FrameType, _: str, __: object) -> Callable[..., Any] | None:
        lines = self._lines.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def local(inner: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line":
                lines.add(inner.f_lineno)
            return local

        return local


def branches_of(source: str) -> set[int]:
    """Return the first line of each branch of a module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If | ast.For | ast.While | ast.match_case | ast.ExceptHandler):
            bodies = [node.body, getattr(node, "orelse", [])]
            found |= {body[0].lineno for body in bodies if body and not _is_elif(node, body)}
    return found


def _is_elif(node: ast.AST, body: list[ast.stmt]) -> bool:
    """Return whether a body is an ``elif``, whose own branches count."""
    return isinstance(node, ast.If) and body is node.orelse and len(body) == 1 and isinstance(body[0], ast.If)


class _Recorded(dict[Any, Any]):
    """A row of a transition table that reports which of its events were looked up."""

    def __init__(self, row: Mapping[Any, Any], used: Callable[[Any], object]) -> None:
        super().__init__(row)
        self._used = used

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self:
            self._used(key)
        return super().get(key, default)

    def __getitem__(self, key: Any) -> Any:
        self._used(key)
        return super().__getitem__(key)
