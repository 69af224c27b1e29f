"""Names that references may use although no page documents them, and what users can import and must be documented."""

import builtins
import collections.abc
import inspect
import sys
import typing
from collections.abc import Container
from importlib import import_module

LIBRARIES = (
    *sorted(sys.stdlib_module_names),
    "arro3",
    "msgspec",
    "click",
    "obstore",
    "opentelemetry",
    "prometheus_client",
)
WITHOUT_MODULE = (*dir(builtins), *collections.abc.__all__, *typing.__all__, "Path", "optional", "T")
"""The parts of annotations that are written without their module."""

IGNORED_NAMES = [
    (r"py:.*", rf"({'|'.join(LIBRARIES)})(\..*)?"),
    (r"py:.*", rf"(headgate\.sync\.)?({'|'.join(WITHOUT_MODULE)})"),
]

PUBLIC_MODULES = ("headgate", "headgate.sync")


def undocumented(documented: Container[str]) -> list[str]:
    """Return what users can import and no page documents, and which methods and properties have no text."""
    problems = []
    for module in PUBLIC_MODULES:
        exported = import_module(module)
        for name in exported.__all__:
            if f"{module}.{name}" not in documented:
                problems.append(f"{module}.{name} is exported, and docs/reference/python.md does not list it")
            problems += [
                f"{module}.{name}.{member} has no docstring" for member in _without_text(getattr(exported, name))
            ]
    return problems


def _without_text(value: object) -> list[str]:
    """Return the public methods and properties of a class that have no docstring."""
    if not isinstance(value, type):
        return []
    return [
        name
        for name, member in vars(value).items()
        if not name.startswith("_")
        and (isinstance(member, property) or inspect.isfunction(member))
        and not inspect.getdoc(member)
    ]
