"""The planted bugs: small patches kept as data, each of which breaks one rule of one module.

A file in ``bugs/`` has an array ``bug`` of tables with these fields:

    file       path of the module, relative to the project
    rule       number of the rule in the module's docstring that the bug breaks; 0: the docstring has no such number
    name       what the changed program does, in a few words
    source     the known bug of another system that this one copies; absent: only the rule
    before     text of the module, once in it
    after      text in its place
    needs      operation or program of a plan without which the simulator cannot find the bug; absent: any world may
    unseen     why the simulator cannot find the bug; absent: it does

Raises CatalogueError for data that does not fit the code.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "bugs"
ROOT = Path(__file__).parents[2]
RULED = (
    "controller.access",
    "controller.backlog",
    "controller.cluster_reply",
    "controller.cluster_status",
    "controller.decisions",
    "controller.devices",
    "controller.leader",
    "controller.leadership.broker_contact",
    "controller.leadership.cold_start",
    "controller.leadership.ledger_identity",
    "controller.leadership.queue_order",
    "controller.leadership.shard_load",
    "controller.leadership.spread",
    "controller.leadership.standby",
    "controller.leadership.successors",
    "controller.leadership.transfer_pace",
    "controller.leadership.transitions",
    "controller.peers",
    "controller.retention.policy",
    "controller.retention.trim_policy",
    "controller.retention.trimmer",
    "controller.scaling",
    "controller.snapshots.read_ahead",
    "controller.snapshots.restore",
    "controller.state",
    "coordinator",
    "drain.backlog.job_size",
    "drain.backlog.merge",
    "drain.backlog.rates",
    "drain.checker",
    "drain.compaction.policy",
    "drain.external.backlog",
    "drain.external.topics",
    "headgate.client",
    "headgate.model.layout",
    "headgate.protocol.backlog",
    "headgate.restart_policy",
    "metrics.health",
)
"""Modules and packages whose numbered rules must each have a bug."""
_RULE = re.compile(r"^\s*(\d+)\. ", re.MULTILINE)


class CatalogueError(AssertionError):
    """A planted bug does not fit the code."""


@dataclass(frozen=True)
class PlantedBug:
    """One bug; see the module."""

    file: str
    rule: int
    name: str
    before: str
    after: str
    source: str = ""
    needs: str = ""
    unseen: str = ""
    root: Path = field(default=ROOT, repr=False, compare=False)

    @property
    def key(self) -> str:
        """Identifies it among all bugs."""
        return f"{self.file}: {self.name}"

    @property
    def digest(self) -> str:
        """Changes with the patch."""
        return hashlib.sha256(f"{self.file}|{self.before}|{self.after}".encode()).hexdigest()[:12]

    @property
    def module(self) -> str:
        """See `tests.mutation.fork_server.Fault`."""
        return self.file.removesuffix(".py").replace("/", ".")

    @property
    def lines(self) -> tuple[int, int]:
        """See `tests.mutation.fork_server.Fault`."""
        source = (self.root / self.file).read_text()
        first = source[: self._position(source)].count("\n") + 1
        return first, first + self.before.rstrip("\n").count("\n")

    @property
    def function(self) -> str:
        """See `tests.mutation.fork_server.Fault`."""
        return _function_around(ast.parse((self.root / self.file).read_text()), *self.lines)

    def patched(self, source: str) -> str:
        """Return the text of the module with the bug; raises CatalogueError if the patch does not apply once."""
        at = self._position(source)
        return source[:at] + self.after + source[at + len(self.before) :]

    def tree(self, source: str) -> ast.Module:
        """See `tests.mutation.fork_server.Fault`."""
        return ast.parse(self.patched(source))

    def _position(self, source: str) -> int:
        found = source.count(self.before)
        if found != 1:
            raise CatalogueError(f"{self.key}: its text `before` is {found} times in {self.file}, not once")
        return source.index(self.before)


def load(folder: Path = FOLDER, root: Path = ROOT) -> list[PlantedBug]:
    """Return all bugs, by file and rule; raises CatalogueError for two of one name."""
    bugs = [
        PlantedBug(**fields, root=root)
        for path in sorted(folder.glob("*.toml"))
        for fields in tomllib.loads(path.read_text())["bug"]
    ]
    keys = [bug.key for bug in bugs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise CatalogueError(f"two bugs have one name: {', '.join(twice)}")
    return sorted(bugs, key=lambda bug: (bug.file, bug.rule, bug.name))


def rules_of(source: str) -> list[int]:
    """Return the numbers of the rules in the docstring of a module."""
    return [int(number) for number in _RULE.findall(ast.get_docstring(ast.parse(source), clean=False) or "")]


def _function_around(tree: ast.Module, first: int, last: int) -> str:
    """Return the qualified name of the outermost function that contains these lines after its header, or ""."""

    def search(body: Sequence[ast.stmt], scope: str) -> str:
        for node in body:
            if node.lineno <= first and last <= (node.end_lineno or node.lineno):
                if isinstance(node, ast.ClassDef):
                    return search(node.body, f"{scope}{node.name}.")
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[0].lineno <= first:
                    return f"{scope}{node.name}"
        return ""

    return search(tree.body, "")
