"""Parses the command line of a program that is started by headgate or by a scheduler, with `argparse`.

The programs of Spark keep `argparse`, because `spark-submit` starts their files, with whatever Python packages the
cluster has.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

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

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(EXIT_WRONG_USAGE, f"headgate: {message}; see: {self.prog} --help\n")
