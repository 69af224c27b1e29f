"""The program around `drain.service.service`: it ends without waiting for threads, and in one line without Spark."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from drain.spark_extra import without_spark


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until a signal, and end the process with the exit code of `drain.service.service.main`."""
    try:
        from drain.service.service import main as serve  # noqa: PLC0415 - it imports Spark
    except ModuleNotFoundError as error:
        missing = without_spark(error)
        if missing is None:
            raise
        # A traceback would fill the log of a daemon that starts this program again and again.
        sys.stderr.write(f"headgate: {missing}\n")
        sys.exit(1)
    code = serve(argv)
    sys.stdout.flush()
    # Not sys.exit: it would wait for threads, and one may hang in a call to a dead JVM.
    os._exit(code)


if __name__ == "__main__":
    main()
