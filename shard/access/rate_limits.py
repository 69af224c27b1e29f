"""What the users of one daemon have spent of their rates. See `shard.access.quotas`."""

from dataclasses import dataclass
from typing import Final

from metrics.label_values import Quota
from shard.access.quotas import MAX_DELAY_SECONDS, Spending, exceeded_text
from shard.access.rules import AccessRules

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
        """Why, for people."""
        return exceeded_text(self.user, self.quota, self.limit)


class RateLimits:
    """The spending of each user, at most one value per user of the access file."""

    def __init__(self) -> None:
        self._spending: dict[str, Spending] = {}

    def admit(self, rules: AccessRules, user: str, size_bytes: int, now: float, *, full: bool) -> OverRate | None:
        """Count a request of ``user``, or return why it is not to be read.

        ``full``: no further reply to the user can be delayed.
        """
        if not rules.limits_rates:
            return None
        limits = rules.limits_of(user)
        key = self._key(rules, user)
        spent = self._spending.get(key) or Spending()
        quota = "requests_per_second" if full else spent.exceeded(now)
        if quota is None:
            self._spending[key] = spent.request(size_bytes, limits, now)
            return None
        answered = not full and spent.may_answer_refusal(now)
        if answered:
            self._spending[key] = spent.refusal(now)
        return OverRate(user, quota, limits.of(quota), answered)

    def delay_seconds(self, rules: AccessRules, user: str, now: float) -> float:
        """Return how long a reply to ``user`` is delayed now."""
        spent = self._spending.get(self._key(rules, user)) if self._spending else None
        return 0.0 if spent is None else min(max(spent.debt_seconds(now), 0.0), MAX_DELAY_SECONDS)

    def retain(self, rules: AccessRules) -> None:
        """Forget the users that ``rules`` does not know."""
        self._spending = {user: spent for user, spent in self._spending.items() if user in rules.users}

    @staticmethod
    def _key(rules: AccessRules, user: str) -> str:
        return user if user in rules.users else _UNKNOWN_USERS
