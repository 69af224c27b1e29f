"""The program around `drain.service.service`: it ends without waiting for threads, and in one line without Spark.

Imports no Spark itself.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from headgate.errors import HeadgateError

SPARK_PACKAGES: Final = ("pyspark", "pyarrow")
"""The packages of the extra ``spark`` of headgate-daemon."""


@contextmanager
def needs_spark() -> Iterator[None]:
    """Say what to install if a package of the extra is missing, by a HeadgateError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in SPARK_PACKAGES:
            raise
        raise HeadgateError(
            f"this program needs Spark, but {package} is not installed: python3 -m pip install 'headgate-daemon[spark]'"
        ) from error


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until a signal, and end the process with the exit code of `drain.service.service.main`."""
    try:
        with needs_spark():
            from drain.service.service import main as serve  # noqa: PLC0415 - it imports Spark
    except HeadgateError as error:
        # A traceback would fill the log of a daemon that starts this program again and again.
        sys.stderr.write(f"headgate: {error}\n")
        sys.exit(1)
    code = serve(argv)
    sys.stdout.flush()
    # Not sys.exit: it would wait for threads, and one may hang in a call to a dead JVM.
    os._exit(code)


if __name__ == "__main__":
    main()
