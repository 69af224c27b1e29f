"""Mutants of a source file: small faults, each of which a unit test should notice.

The kinds are comparison, boolean, arithmetic, constant, return and deletion. Type annotations, decorators, assertions,
docstrings, imports and class headers are left alone: a fault there is either equivalent or fails at import.

A mutant is identified by what it changes (module, function, kind, old and new text, occurrence), not by its line, so that
`sample` picks the same mutants from two versions of a file as far as both contain them.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

Swaps = dict[type[ast.AST], type[ast.AST]]

COMPARISONS: Swaps = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: Swaps = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
DELETABLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.Delete)
Edit = Callable[[ast.AST], ast.AST]


@dataclass(frozen=True)
class Mutant:
    """One fault. `lines` are those which a test must execute to notice it; `function` is "" outside functions."""

    module: str
    function: str
    kind: str
    old: str
    new: str
    occurrence: int
    lines: tuple[int, int]
    node: int
    choice: int

    @property
    def key(self) -> str:
        """Identify this fault in every version of the module that contains it."""
        return "|".join((self.module, self.function, self.kind, self.old, self.new, str(self.occurrence)))

    def tree(self, source: str) -> ast.Module:
        """Return the syntax tree of the module with the fault in it."""
        return apply(source, self)

    def describe(self) -> str:
        """Return one line for the report."""
        return f"{self.module}:{self.lines[0]} {self.function or '(module)'}: {self.kind}: {self.old} -> {self.new}"


def mutants_of(source: str, module: str) -> list[Mutant]:
    """Return all mutants of a source file, in the order of its syntax tree."""
    tree = ast.parse(source)
    positions = {id(node): number for number, node in enumerate(ast.walk(tree))}
    seen: dict[tuple[str, ...], int] = {}
    found = []
    for node, function, statement in _sites(tree):
        for choice, (kind, edit) in enumerate(_edits(node, function)):
            old, new = _text(node), _text(edit(copy.deepcopy(node)))
            occurrence = seen.get((function, kind, old, new), 0)
            seen[function, kind, old, new] = occurrence + 1
            first, last = min(node.lineno, statement.lineno), cast("int", node.end_lineno)
            found.append(
                Mutant(module, function, kind, old, new, occurrence, (first, last), positions[id(node)], choice)
            )
    return found


def apply(source: str, mutant: Mutant) -> ast.Module:
    """Return the syntax tree of `source` with the mutant's fault in it."""
    tree = ast.parse(source)
    target = list(ast.walk(tree))[mutant.node]
    _, edit = list(_edits(target, mutant.function))[mutant.choice]
    replacement = ast.copy_location(edit(copy.deepcopy(target)), target)
    return ast.fix_missing_locations(_Replace(target, replacement).visit(tree))


def sample(mutants: Iterable[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return `size` mutants, chosen by a hash of the seed and each mutant's key."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}|{mutant.key}".encode()).hexdigest()

    return sorted(mutants, key=rank)[:size]


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target = target
        self._replacement = replacement

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replacement if node is self._target else self.generic_visit(node)


def _sites(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.stmt]]:
    """Yield (node, outermost function's qualified name, enclosing statement) for every node that may be mutated."""
    yield from _visit(tree, "", "", None)


def _visit(
    node: ast.AST, scope: str, function: str, statement: ast.stmt | None
) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.stmt]]:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) or _is_docstring(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    if statement is not None and isinstance(node, ast.expr | ast.stmt):
        yield node, function, statement
    for field, child in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "bases", "keywords"} and not isinstance(node, ast.Call):
            continue
        inner_scope, inner_function = scope, function
        if field == "body" and isinstance(node, ast.ClassDef):
            inner_scope = f"{scope}{node.name}."
        elif field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner_function = function or f"{scope}{node.name}"
        for part in child if isinstance(child, list) else [child]:
            if isinstance(part, ast.AST):
                yield from _visit(part, inner_scope, inner_function, statement)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _edits(node: ast.AST, function: str) -> Iterator[tuple[str, Edit]]:
    """Yield (kind, edit) for each fault that this node can have. An edit may change the copy that it gets."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield "comparison", _set_operator(index, COMPARISONS[type(operator)])
        case ast.BoolOp():
            swapped = ast.And if isinstance(node.op, ast.Or) else ast.Or
            yield "boolean", lambda copied: ast.BoolOp(op=swapped(), values=copied.values)  # type: ignore[attr-defined]
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", lambda copied: copied.operand  # type: ignore[attr-defined]
        case ast.Constant(value=bool()) if function:
            yield "boolean", lambda copied: ast.Constant(value=not copied.value)  # type: ignore[attr-defined]
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            yield "constant", lambda copied: ast.Constant(value=copied.value + 1)  # type: ignore[attr-defined]
            yield "constant", lambda copied: ast.Constant(value=copied.value - 1)  # type: ignore[attr-defined]
        case ast.BinOp() if type(node.op) in ARITHMETIC and (function or not isinstance(node.op, ast.BitOr)):
            operator = ARITHMETIC[type(node.op)]
            yield "arithmetic", lambda copied: ast.BinOp(copied.left, operator(), copied.right)  # type: ignore[attr-defined]
        case ast.Return(value=ast.expr()):
            yield "return", lambda copied: ast.Return(ast.UnaryOp(ast.Not(), copied.value))  # type: ignore[attr-defined]
        case _ if function and isinstance(node, DELETABLE):
            yield "deletion", lambda _: ast.Pass()


def _set_operator(index: int, operator: type[ast.AST]) -> Edit:
    def edit(copied: ast.AST) -> ast.AST:
        cast("ast.Compare", copied).ops[index] = cast("ast.cmpop", operator())
        return copied

    return edit


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
