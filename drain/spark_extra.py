"""The extra ``spark`` of headgate-daemon: the error of a program that runs without it. Imports no Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headgate.errors import HeadgateError
from headgate.extras import install_extra

PACKAGES: Final = ("pyspark", "pyarrow")


@contextmanager
def needs_spark() -> Iterator[None]:
    """Say what to install if a package of the extra is missing, by a HeadgateError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        raise HeadgateError(
            f"this program needs Spark, but {package} is not installed: {install_extra('spark', 'headgate-daemon')}"
        ) from error
