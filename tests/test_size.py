"""The program stays small: a budget of lines for each part, functions of one screen, and classes with few attributes.

What grows beyond a limit contains more than one concept: divide it, or remove something. A limit rises only with a
feature that users need, by what could not be removed for it, and with that reason.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_folders import ROOT, SOURCE_FOLDERS

PRODUCT = ("headgate", "controller", "coordinator", "drain", "metrics", "shard", "web", "daemon")
TOOLS = ("bench", "chaos", "scale", "demo", "trials", "monitoring", "docs/sitebuild", "deploy")
LINES = {
    # The aim is 51 000. Beyond it, with what could not be removed for them: Spark source and sink, lakehouse and external
    # tables, Kinesis, histories with their judge, the page, events, more shards, feature levels, chunks in messages.
    "product": (PRODUCT, "*.py", 69_186),
    # The aim is 8 500. Beyond it: other brokers, a slow bucket, older clients, certificates that expire.
    "tools": (TOOLS, "*.py", 11_036),
    # The conformance suite of clients, whose scripted leader the client's unit tests use; a broker for FastStream; examples.
    "adoption": (("clients/conformance", "integrations", "examples"), "*.*", 3_421),
    # Sources, examples and types.
    "javascript": (("clients/javascript",), "*.*s", 3_167),
    # Data included. The aim is 66 000. Beyond it: tests of what is beyond the aim of the product, recorded ledgers, worlds
    # that draw settings, ask, re-create and end with a fault that stays.
    "tests": (("tests",), "*.*", 86_082),
}
"""Part → its folders, the files that count, and how many lines they may have."""
GENERATED = ("__pycache__", "node_modules", "package-lock.json", "ledger.tar.xz")
FUNCTION = re.compile(r"\s*(?:async )?def (\w+)")
FUNCTION_LINES = 60
"""A screen. The signature counts, and so do the docstring and nested functions."""
OF_SELF = re.compile(r"\bself\.(\w+)")
FIELD = re.compile(r"^    (\w+): ", re.MULTILINE)
ATTRIBUTES = 15
"""Of a class of the product or of trials: state that a reader has to hold in mind."""


def lines_of(path: Path) -> int:
    return 0 if any(part in GENERATED for part in path.parts) or not path.is_file() else path.read_bytes().count(b"\n")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within ``node``. No expression contains a function with a name."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, part, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def attributes(found: ast.ClassDef) -> set[str]:
    """Return the fields of a class, and the names that its methods assign to ``self``; none if it is frozen."""
    if any("frozen=True" in ast.unparse(each) for each in (*found.decorator_list, *found.keywords)):
        return set()
    fields = {
        each.target.id
        for each in found.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each)
    }
    targets = [
        target
        for node in ast.walk(found)
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    ]
    return fields | {
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


@pytest.mark.parametrize("part", LINES)
def test_a_part_has_a_budget_of_lines(part: str) -> None:
    folders, pattern, limit = LINES[part]

    assert limit >= sum(lines_of(path) for folder in folders for path in (ROOT / folder).rglob(pattern))


def functions(source: str) -> Iterator[tuple[int, str, int]]:
    """Yield line, name and number of lines of each function: up to the last line that is indented further.

    A syntax tree of all sources takes ten times as long. Closing brackets of a signature end no function.
    """
    lines = source.splitlines()
    open_functions: list[tuple[int, int, str]] = []
    last = 0
    for number, line in enumerate([*lines, "end"], 1):
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while open_functions and indent <= open_functions[-1][0] and line.lstrip()[0] not in ")]}":
            _, first, name = open_functions.pop()
            yield first, name, last - first + 1
        if (found := FUNCTION.match(line)) is not None:
            open_functions.append((indent, number, found[1]))
        last = number


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{first}: {name} has {lines} lines: at most {FUNCTION_LINES}"
        for folder in SOURCE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for first, name, lines in functions(path.read_text())
        if lines > FUNCTION_LINES
    ]

    assert [] == long


def test_classes_have_few_attributes() -> None:
    found: dict[str, int] = {}
    folders = *PRODUCT, *LINES["adoption"][0], "trials"
    for source in (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")):
        if len(set(OF_SELF.findall(source))) + len(FIELD.findall(source)) <= ATTRIBUTES:
            continue  # Most modules: a syntax tree of all takes seconds.
        for node in statements(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name] = max(found.get(node.name, 0), len(attributes(node)))
    more = {name: number for name, number in found.items() if number > ATTRIBUTES}

    assert {} == more, "divide the class: an object that is a concept"
