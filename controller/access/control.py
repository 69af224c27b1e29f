"""The access rules in force. Count what they refuse, and log the first refusal of each client."""

from __future__ import annotations

from typing import Final

import structlog

from controller.access.rules import AccessRules
from metrics import events

MAX_LOGGED_CLIENTS: Final = 1000
"""Clients whose refusals were logged. Beyond it all are forgotten, and are logged once more."""

log = structlog.get_logger(__name__)


class AccessControl:
    """The rules, which may be replaced at any time, and what became of them."""

    def __init__(self, rules: AccessRules, observer: events.Observer) -> None:
        self.rules = rules
        self._observer = observer
        self._logged: set[str] = set()

    def report_refused(self, address: str, request: str, reason: str) -> None:
        """Report that a request of the client at ``address`` was refused; ``request`` names its kind."""
        self._observer.observe(events.AccessDenied())
        if address in self._logged:
            return
        if len(self._logged) >= MAX_LOGGED_CLIENTS:
            self._logged.clear()
        self._logged.add(address)
        log.warning("access.denied", client=address, request=request, reason=reason)
