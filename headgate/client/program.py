"""What a consumer says about the program that runs it: its host and the version of this library.

Only for people who look for it; nothing is decided by it. The leader accepts printable ASCII without spaces.
"""

import re
import socket
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

MAX_CHARACTERS: Final = 128
"""Limit of the protocol. A host name has up to 64 on Linux."""
_UNPRINTABLE: Final = re.compile(r"[^!-~]")


def host_name() -> str:
    """Return the name of this machine."""
    return program_text(socket.gethostname())


@cache
def library_version() -> str:
    """Return the version of this library; empty if it runs from files that no distribution installed."""
    try:
        return program_text(version("headgate"))
    except PackageNotFoundError:
        return ""


def program_text(text: str) -> str:
    """Return ``text`` as the protocol allows it: other characters become question marks, and its end is cut off."""
    return _UNPRINTABLE.sub("?", text)[:MAX_CHARACTERS]
