"""What is stored about the maintenance of one daemon, and how a command changes it. Pure.

The record outlives terms and leaders, and any leader changes it. So it remembers the commands itself: a late copy of
one must not undo what was commanded since.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_TOKENS: Final = 64
"""Commands remembered per daemon, the latest ones."""


class MaintenanceRecord(msgspec.Struct, frozen=True):
    """Whether the daemon is in maintenance, and the tokens of the commands that were executed, latest last."""

    on: bool = False
    tokens: tuple[str, ...] = ()

    def after(self, token: str, *, on: bool) -> MaintenanceRecord | None:
        """Return the record after a command; None if it was executed before."""
        if token in self.tokens:
            return None
        return MaintenanceRecord(on, (*self.tokens, token)[-MAX_TOKENS:])


def read_maintenance(data: bytes) -> MaintenanceRecord:
    """Return the record in ``data``. What is no record counts as maintenance: the daemon then leads nothing."""
    try:
        return msgspec.json.decode(data, type=MaintenanceRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return MaintenanceRecord(on=True)
