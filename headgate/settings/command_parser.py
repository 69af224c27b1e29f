"""Parse the command line of a program that is started by headgate or by a scheduler, and report why one failed.

The programs of Spark keep `argparse`, because `spark-submit` starts their files, with whatever Python packages the
cluster has.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from headgate.log.journal import journal_priority

JSON_OPTION: Final = "--json"
EXIT_WRONG_USAGE = 2


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether ``arguments`` contain the option, also if they are wrong otherwise."""
    before_names = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return JSON_OPTION in before_names


def error_line(text: str, exit_code: int, *, as_json: bool) -> str:
    """Return the line, without its end, with which every program of headgate reports why it failed.

    For people it starts with ``headgate: ``, in the journal with its priority. A program that is asked for JSON prints
    errors as JSON, also of usage: one object with ``error`` and ``exit_code``. Line breaks in ``text`` become spaces.
    """
    one_line = " ".join(text.split())
    if not as_json:
        return f"{journal_priority('error', sys.stderr)}headgate: {one_line}"
    import json  # noqa: PLC0415 - not needed for `headgate --help`

    return json.dumps({"error": one_line, "exit_code": int(exit_code)}, ensure_ascii=False)


class CommandParser(argparse.ArgumentParser):
    """Help ends with examples, and wrong usage is one line and exit code 2, as in `headgate`."""

    def __init__(self, program: str, description: str, *examples: str) -> None:
        """``examples`` are arguments of ``program``."""
        super().__init__(
            prog=program,
            description=description,
            epilog="\n".join(("Examples:", *(f"  {program} {example}" for example in examples))),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._as_json = False

    def parse_known_args(  # type: ignore[override]  # argparse's overloads differ only in the namespace's type
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self._as_json = asks_for_json(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        line = error_line(f"{message}; see: {self.prog} --help", EXIT_WRONG_USAGE, as_json=self._as_json)
        self.exit(EXIT_WRONG_USAGE, f"{line}\n")
