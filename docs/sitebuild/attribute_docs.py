"""Read the strings below the attributes of a class, which document them. Python keeps them in the source only."""

from __future__ import annotations

import ast
import inspect
import textwrap


def attribute_docs(owner: type) -> dict[str, str]:
    """Return attribute → text, in the order of the class. An attribute without a text is missing."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
    return docs
