"""Write files that only their owner may read. A reader finds the old content or the new one, never a part."""

import os
import secrets
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError

OWNER_ONLY: Final = 0o600
OWNER_ONLY_FOLDER: Final = 0o700


def write_private_file(path: Path, text: str) -> Path:
    """Replace the file at ``path``, also if others could read it until now; return ``path``.

    Raises ConfigError: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.touch(OWNER_ONLY, exist_ok=False)
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return path
