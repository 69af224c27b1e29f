"""The program around `drain.service.service`: it ends without waiting for threads, and in one line without Spark."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from drain.service.processor_share import NICENESS
from drain.spark_extra import needs_spark
from headgate.errors import HeadgateError
from headgate.process.resources import give_way
from headgate.settings.command_parser import error_line


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until a signal, and end the process with the exit code of `drain.service.service.main`."""
    try:
        with needs_spark():
            from drain.service.service import main as serve  # noqa: PLC0415 - it imports Spark
    except HeadgateError as error:
        # A traceback would fill the log of a daemon that starts this program again and again.
        sys.stderr.write(error_line(str(error), 1, as_json=False) + "\n")
        sys.exit(1)
    give_way(NICENESS)
    code = serve(argv)
    sys.stdout.flush()
    # Not sys.exit: it would wait for threads, and one may hang in a call to a dead JVM.
    os._exit(code)


if __name__ == "__main__":
    main()
