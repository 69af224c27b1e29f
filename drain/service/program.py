"""The program around `drain.service.service`: it ends without waiting for threads, and in one line without Spark.

Imports no Spark itself.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from headgate.errors import HeadgateError

SPARK_PACKAGES: Final = ("pyspark", "pyarrow")
"""The packages of the extra ``spark`` of headgate-daemon."""


def without_spark(error: ModuleNotFoundError) -> HeadgateError | None:
    """Return what to install if ``error`` is a missing package of the extra; None: it is another one."""
    package = (error.name or "").partition(".")[0]
    if package not in SPARK_PACKAGES:
        return None
    return HeadgateError(
        f"this program needs Spark, but {package} is not installed: python3 -m pip install 'headgate-daemon[spark]'"
    )


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
