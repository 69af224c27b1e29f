"""Names that references may use although no page of this site documents them: those of Python and of libraries."""

import builtins
import collections.abc
import sys
import typing

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
