"""Tokens for HTTP: one file lists the names of their holders and SHA-256 hashes, one line each.

    prometheus sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

The file does not contain the tokens, so a copy of it, in a backup for instance, opens nothing. One
round of SHA-256 without salt suffices, because `new_token` makes tokens of 256 random bits; it would
not suffice for passwords that people choose. A name may have several lines, so that a token can be
replaced without a gap. Empty lines and those that begin with ``#`` are ignored.
"""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError
from headgate.files.named_file import read_named_file
from web.access import Tokens

MAX_TOKENS: Final = 1000
"""Each request with a token is compared with all of them: 0.04 ms."""
MAX_FILE_BYTES: Final = 1024 * 1024
TOKEN_BYTES: Final = 32

_LINE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})[ \t]+sha256:([0-9a-f]{64})")


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_line(name: str, token: str) -> str:
    """Return the line of the file for ``token``. Raises ConfigError if ``name`` is not valid."""
    line = f"{name} sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    if _LINE.fullmatch(line) is None:
        raise ConfigError(f"{name!r} is not a name: use up to 100 letters, digits, dots, hyphens and underscores")
    return line


def read_tokens(path: Path | str, setting: str) -> Tokens:
    """Return the tokens in ``path``, which ``setting`` names. Raises ConfigError, which never quotes a line."""
    contents = read_named_file(path, setting, max_bytes=MAX_FILE_BYTES, private=True)
    entries: list[tuple[str, bytes]] = []
    for number, line in enumerate(contents.decode("ascii", "replace").splitlines(), start=1):
        if not (text := line.strip()) or text.startswith("#"):
            continue
        if (found := _LINE.fullmatch(text)) is None:
            raise ConfigError(
                f"{setting}: {path}, line {number}: write NAME sha256:HASH; `headgate http token` adds such a line"
            )
        entries.append((found[1], bytes.fromhex(found[2])))
    if len(entries) > MAX_TOKENS:
        raise ConfigError(f"{setting}: {path} has {len(entries)} tokens; {MAX_TOKENS} are allowed")
    return Tokens(tuple(entries))
