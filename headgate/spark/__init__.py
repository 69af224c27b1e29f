"""Topics as a source and a sink of Spark. Programs bring their own PySpark, 4.2 or later, with pyarrow."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.spark.data_source import HeadgateDataSource as HeadgateDataSource


def __getattr__(name: str) -> object:
    """Import the data source on first use, because everything else here needs no PySpark."""
    if name != "HeadgateDataSource":
        raise AttributeError(f"module 'headgate.spark' has no attribute {name!r}")
    try:
        return getattr(import_module("headgate.spark.data_source"), name)
    except ImportError as error:
        raise ImportError(f"headgate.spark needs PySpark 4.2 or later, and pyarrow: {error}") from error
