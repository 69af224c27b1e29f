"""Read a password or a token from its file. No argument and no variable of the environment ever contains one.

The file has one line of text. Other users than its owner and its group must have no access: a secret that every user
of the machine can read is none. systemd credentials, and Kubernetes secrets with ``defaultMode: 0440``, are like this.
"""

from pathlib import Path
from typing import Final

from headgate.errors import ConfigError
from headgate.files.named_file import read_named_file

MAX_SECRET_BYTES: Final = 4096


def read_secret(path: Path | str, setting: str) -> str:
    """Return the only line of ``path``, which ``setting`` names, without its end.

    Raises:
        ConfigError: the file cannot be read, is open to other users, or is not one non-empty line of UTF-8 text of at
            most `MAX_SECRET_BYTES`. The text names setting and file, and contains nothing of the secret.
    """
    contents = read_named_file(path, setting, max_bytes=MAX_SECRET_BYTES, private=True)
    try:
        secret = contents.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is not UTF-8 text") from None
    if not secret:
        raise ConfigError(f"{setting}: {path} is empty; its first line must be the secret")
    if not secret.isprintable():
        raise ConfigError(
            f"{setting}: {path} must have one line without control characters: the secret and nothing else"
        )
    return secret
