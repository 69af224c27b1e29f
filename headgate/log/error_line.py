"""The line on standard error with which every program of headgate reports why it failed. Pure.

For people it starts with ``headgate: ``. A program that is asked for JSON prints errors as JSON as well, usage errors
included: one object with ``error`` and ``exit_code``.
"""

from collections.abc import Sequence
from typing import Final

JSON_OPTION: Final = "--json"


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether ``arguments`` contain the option, also if they are wrong otherwise."""
    before_names = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return JSON_OPTION in before_names


def error_line(text: str, exit_code: int, *, as_json: bool) -> str:
    """Return the line, without its end. Line breaks in ``text`` become spaces."""
    one_line = " ".join(text.split())
    if not as_json:
        return f"headgate: {one_line}"
    import json  # noqa: PLC0415 - not needed for `headgate --help`

    return json.dumps({"error": one_line, "exit_code": int(exit_code)}, ensure_ascii=False)
