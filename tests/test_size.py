"""Functions and files stay short. What grows beyond a limit contains more than one concept: split it there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.source_folders import ROOT, SOURCE_FOLDERS

FUNCTION_LINES = 60
"""A screen. The signature counts, and so do the docstring and nested functions."""
FILE_LINES = 500


def too_long(name: str, text: str) -> Iterator[str]:
    """Yield what exceeds a limit in the module ``name``, with its length."""
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield f"{name} has {lines} lines: at most {FILE_LINES}"
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines: at most {FUNCTION_LINES}"


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within ``node``. No expression contains a function with a name."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, part, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def test_functions_and_files_are_short() -> None:
    files = sorted(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.py"))

    assert [] == [line for path in files for line in too_long(path.relative_to(ROOT).as_posix(), path.read_text())]


def test_a_long_function_and_a_long_file_are_found() -> None:
    short, long = (
        f"def f{length}():\n" + "    g()\n" * (length - 1) for length in (FUNCTION_LINES, FUNCTION_LINES + 1)
    )

    assert [] == list(too_long("a.py", short))
    assert ["a.py:61: f61 has 61 lines: at most 60"] == list(too_long("a.py", short + long))
    assert ["a.py has 501 lines: at most 500"] == list(too_long("a.py", "g()\n" * 501))
