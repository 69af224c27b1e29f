"""Parses the command line of a program that is started by headgate or by a scheduler, with `argparse`.

The programs of Spark keep `argparse`, because `spark-submit` starts their files, with whatever Python packages the
cluster has.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from headgate.log.error_line import asks_for_json, error_line

EXIT_WRONG_USAGE = 2


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
