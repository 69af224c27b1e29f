"""Ways to damage a Parquet file."""

from pathlib import Path


def truncate(path: Path) -> None:
    """Remove the end of the footer."""
    path.write_bytes(path.read_bytes()[:-20])


def corrupt(path: Path) -> None:
    """Overwrite data pages. The footer stays valid, so only reading the pages detects it."""
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
