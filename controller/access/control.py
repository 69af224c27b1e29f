"""The access rules in force. Count what they refuse, and log it at a limited rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from headgate.backoff import ReportLimit
from headgate.protocol.codec import user_of
from metrics import events
from metrics.label_values import Quota
from shard.access.quotas import MAX_DELAY_SECONDS, Spending, exceeded_text
from shard.access.rules import AccessRules
from shard.subscriptions.refusal import Refusal

MAX_LOGGED_CLIENTS: Final = 1000
"""Clients whose refusals were logged. Beyond it all are forgotten, and are logged once more."""
LOG_INTERVAL_SECONDS: Final = 60.0
"""Between two log lines about the quotas of one client, or the protocol of clients of one user."""

log = structlog.get_logger(__name__)

_UNKNOWN_USERS: Final = ""
"""All users without rights spend together: their names are not limited in number."""


@dataclass(frozen=True, slots=True)
class OverRate:
    user: str
    quota: Quota
    limit: float
    answered: bool
    """Whether to answer it with a refusal."""

    @property
    def reason(self) -> str:
        """Why it was refused, for people."""
        return exceeded_text(self.user, self.quota, self.limit)


class AccessControl:
    """The rules, which may be replaced at any time, what became of them, and what users have spent of their rates."""

    def __init__(self, rules: AccessRules, observer: events.Observer) -> None:
        self._rules = rules
        self._observer = observer
        self._spending: dict[str, Spending] = {}
        """User of the rules → what it has spent. All users without rights are one."""
        self._denials_logged = ReportLimit(math.inf, MAX_LOGGED_CLIENTS)
        self._repeated_logged = ReportLimit(LOG_INTERVAL_SECONDS, MAX_LOGGED_CLIENTS)

    @property
    def rules(self) -> AccessRules:
        """The rules in force. What their users have spent outlives a change; which refusals were logged does not."""
        return self._rules

    @rules.setter
    def rules(self, rules: AccessRules) -> None:
        self._rules = rules
        self._spending = {user: spent for user, spent in self._spending.items() if user in rules.users}
        self._denials_logged = ReportLimit(math.inf, MAX_LOGGED_CLIENTS)

    def report_other_version(self, address: str, reason: str, now: float) -> None:
        """Log that the client at ``address`` speaks another version of the protocol. ``now``: the loop's clock."""
        if self._repeated_logged.is_due(now, ("protocol", user_of(address))):
            log.warning("client.protocol_mismatch", client=address, reason=reason)

    def admit(self, address: str, size_bytes: int, now: float, *, full: bool) -> OverRate | None:
        """Count a message from the client at ``address``, or return why it is not to be read.

        ``now``: the loop's clock. ``full``: no further reply to its user can be delayed.
        """
        if self._rules.is_open:  # Names are claims then, and no user has a limit.
            return None
        user = user_of(address)
        key, limits = self._key(user), self._rules.limits_of(user)
        spent = self._spending.get(key, Spending()).under(limits, now)
        quota = "requests_per_second" if full else spent.exceeded(now)
        if quota is None:
            self._spending[key] = spent.request(size_bytes, now)
            return None
        answered = not full and spent.may_answer_refusal(now)
        if answered:
            self._spending[key] = spent.refusal(now)
        over = OverRate(user, quota, limits.of(quota), answered)
        self._report_exceeded(address, quota, now, lambda: over.reason)
        return over

    def delay_seconds(self, user: str, now: float) -> float:
        """Return how long a reply to ``user`` is delayed, because it has spent its rates."""
        spent = self._spending.get(self._key(user)) if self._spending else None
        return 0.0 if spent is None else min(max(spent.debt_seconds(now), 0.0), MAX_DELAY_SECONDS)

    def delay_reason(self, user: str, now: float) -> str:
        """Return why replies to ``user`` are delayed now; empty: they are not."""
        quota = self._spending.get(self._key(user), Spending()).exceeded(now, 0.0)
        return "" if quota is None else exceeded_text(user, quota, self._rules.limits_of(user).of(quota))

    def _key(self, user: str) -> str:
        return user if user in self._rules.users else _UNKNOWN_USERS

    def report_refused(self, address: str, request: str, refusal: Refusal, now: float) -> None:
        """Report that a request of the client at ``address`` was refused; ``request`` names its kind."""
        if refusal.quota is not None:
            self._report_exceeded(address, refusal.quota, now, lambda: refusal.reason)
        elif refusal.verdict == "forbidden":
            self._observer.observe(events.AccessDenied())
            if self._denials_logged.is_due(now, address):
                log.warning("access.denied", client=address, request=request, reason=refusal.reason)

    def _report_exceeded(self, address: str, quota: Quota, now: float, reason: Callable[[], str]) -> None:
        self._observer.observe(events.QuotaExceeded(quota=quota))
        if self._repeated_logged.is_due(now, address):
            log.warning("quota.exceeded", client=address, quota=quota, reason=reason())
