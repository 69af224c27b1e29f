"""Files of passwords and tokens, as headgate accepts them."""

from pathlib import Path


def write_secret(path: Path, contents: bytes) -> Path:
    """Write ``contents`` to a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_bytes(contents)
    path.chmod(0o600)
    return path
