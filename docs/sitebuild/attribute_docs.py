"""Read the strings below the attributes of a class, which document them. Python keeps them in the source only."""

import ast
import inspect
import itertools
import textwrap


def attribute_docs(owner: type) -> dict[str, str]:
    """Return attribute → text, those of bases first. An attribute without a text is missing."""
    libraries = ("builtins", "enum", "msgspec")
    ours = [base for base in reversed(owner.__mro__) if base.__module__.split(".")[0] not in libraries]
    classes = [ast.parse(textwrap.dedent(inspect.getsource(base))).body[0] for base in ours]
    statements = [each for one in classes if isinstance(one, ast.ClassDef) for each in one.body]
    docs = {}
    for statement, following in itertools.pairwise(statements):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
    return docs
