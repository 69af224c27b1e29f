"""Notice that two running programs use one client id. Pure.

The broker ends the connection of one whenever the other connects. After a change of program the
older one never returns, so an older incarnation behind a newer one means that both run. The broker
knows client ids only: the two programs may be of different users.
"""

from dataclasses import dataclass
from typing import Final

from headgate.protocol.codec import Presence, client_of

MAX_CLIENTS: Final = 10_000
"""Clients whose incarnation is remembered; beyond it the client that was seen first is forgotten."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """An older program has connected after a newer one. ``first``: for the first time under this client id.

    ``newer``: the address of the newer one.
    """

    first: bool
    newer: str


class ClientIds:
    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, str]] = {}
        """Client id → (incarnation, address) of the newest program."""
        self._conflicting: set[str] = set()

    def check(self, presence: Presence) -> Conflict | None:
        """Record ``presence``; return the conflict that it shows, if any."""
        if not presence.online or presence.incarnation is None:
            return None
        client_id = client_of(presence.client_id)
        newest = self._newest.get(client_id)
        if newest is not None and presence.incarnation < newest[0]:
            first = client_id not in self._conflicting
            self._conflicting.add(client_id)
            return Conflict(first, newest[1])
        self._newest[client_id] = presence.incarnation, presence.client_id
        if len(self._newest) > MAX_CLIENTS:
            forgotten = next(iter(self._newest))
            del self._newest[forgotten]
            self._conflicting.discard(forgotten)
        return None
