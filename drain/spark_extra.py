"""The extra ``spark`` of headgate-daemon: the error of a program that runs without it. Imports no Spark."""

from typing import Final

from headgate.errors import HeadgateError

PACKAGES: Final = ("pyspark", "pyarrow")


def without_spark(error: ModuleNotFoundError) -> HeadgateError | None:
    """Return what to install if ``error`` is a missing package of the extra; None: it is another one."""
    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        return None
    return HeadgateError(
        f"this program needs Spark, but {package} is not installed: python3 -m pip install 'headgate-daemon[spark]'"
    )
