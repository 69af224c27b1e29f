"""A message about a limit that an operator can set names the setting, so that the reader knows what to change."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.source_folders import ROOT

LIMIT = re.compile(r"(within|period of|longer than|more than|took over|maximum of|unreachable for|came for) $")
IN_SOURCE = re.compile(LIMIT.pattern.replace("$", "['\"{]"))  # A syntax tree of all modules takes seconds.
SETTING = re.compile(r"\w+\.\w+_(seconds|bytes)|--[a-z-]+|topic set")
FIXED = (
    "controller/cli/doctor.py",  # its own argument, as the next one
    "controller/leader/shard_controller.py",
    "drain/checker/checker.py",  # another line adds the setting, as in the next two
    "drain/checker/connection.py",
    "drain/spark/runner.py",
    "drain/checker/supervisor.py",  # of a ping, and in the next one of a listing
    "drain/external/count.py",
)


def messages(path: Path) -> Iterator[str]:
    """Yield the texts in ``path`` that state a limit which is no constant."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        texts = [each.value if isinstance(each, ast.Constant) else "" for each in parts]
        shown = [ast.unparse(each.value) if isinstance(each, ast.FormattedValue) else "" for each in parts]
        if any(LIMIT.search(text) and re.search("[a-z]", after) for text, after in zip(texts, shown[1:], strict=False)):
            yield "…".join(texts)


def test_a_message_about_a_limit_names_its_setting() -> None:
    paths = [path for part in ("controller", "coordinator", "drain", "shard") for path in (ROOT / part).rglob("*.py")]
    paths = [path for path in paths if IN_SOURCE.search(path.read_text())]
    found = [(str(path.relative_to(ROOT)), text) for path in paths for text in messages(path)]

    assert [] == [each for each in found if each[0] not in FIXED and not SETTING.search(each[1])]
    assert set(FIXED) < {path for path, _ in found}
