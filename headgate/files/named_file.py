"""Find and read a small file that a setting names. Every error names the setting and the file, never the contents."""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from headgate.errors import ConfigError

OTHERS: Final = 0o007

SectionT = TypeVar("SectionT", bound=msgspec.Struct)


def with_located_files(section: SectionT, fields: Iterable[str], folder: Path, credentials: Path | None) -> SectionT:
    """Return ``section`` with absolute paths in those of ``fields`` that are set.

    A relative path is that of one of systemd's ``credentials`` if there is one, else relative to ``folder``.
    """
    names = {field: getattr(section, field) for field in fields}
    found = {field: str(_locate(name, folder, credentials)) for field, name in names.items() if name is not None}
    return msgspec.structs.replace(section, **found)


def _locate(name: str, folder: Path, credentials: Path | None) -> Path:
    if not Path(name).is_absolute() and credentials is not None and (credentials / name).is_file():
        return (credentials / name).absolute()
    return (folder / name).absolute()


def read_named_file(path: Path | str, setting: str, *, max_bytes: int, private: bool) -> bytes:
    """Return the contents of ``path``, which ``setting`` names; ``private``: other users must have no access.

    Raises ConfigError: it cannot be read, is not a regular file, is empty, is too large, or is open to others.
    """
    file = Path(path)
    try:
        # Before it is opened: the opening of a named pipe waits for its writer.
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{setting}: {path} is not a file; name a file")
        if private and mode & OTHERS:
            raise ConfigError(
                f"{setting}: every user may access {path} (mode {stat.S_IMODE(mode):04o}): "
                "allow only owner and group, for example with chmod 640"
            )
        with file.open("rb") as opened:
            contents = opened.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{setting}: {str(path)!r} is not a path") from None
    if not contents:
        raise ConfigError(f"{setting}: {path} is empty")
    if len(contents) > max_bytes:
        raise ConfigError(f"{setting}: {path} has more than {max_bytes} bytes; is it the right file?")
    return contents


MAX_SECRET_BYTES: Final = 4096


def read_secret(path: Path | str, setting: str) -> str:
    """Return a password or a token: the only line of ``path``, which ``setting`` names, without its end.

    No argument and no variable of the environment ever contains one. Other users than the file's owner and its group
    must have no access: a secret that every user of the machine can read is none. systemd credentials, and Kubernetes
    secrets with ``defaultMode: 0440``, are like this.

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
