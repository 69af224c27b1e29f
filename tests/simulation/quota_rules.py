"""Checks what users with quotas have, and what they are refused. It counts the objects of the ledger's state itself.

1. What a user has never grows beyond its quota, except by segments that retention rolls.
2. The leader's own count, by which it judges, is the true one: it falls again with every end of an object.
3. A refusal names the quota, its limit, and a number of objects that the user had since it asked; with what it asked for,
   they exceed the limit.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from headgate.model import entries as e
from headgate.protocol.codec import user_of
from metrics.label_values import Quota
from shard.access.quotas import Limits, count_of
from shard.state.shard_state import ShardState
from tests.simulation.broken_promise import BrokenPromiseError

OBJECTS: Final[tuple[Quota, ...]] = ("topics", "segments", "subscriptions", "consumers", "producers")
_REFUSAL: Final = re.compile(r"user (\S+) has (\d+) (\w+) on this shard, and its quota (\w+) is (\d+): .+")

Place = tuple[int, str, Quota]
"""(shard, user, quota)."""


@dataclass
class QuotaRules:
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """The users that are counted."""
    _counts: dict[Place, int] = field(default_factory=dict)
    _asking: list[dict[Place, tuple[int, int]]] = field(default_factory=list)
    """For each request without an answer: the fewest and the most objects since it was asked."""

    def check_after(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Count everything again after an entry (rules 1 and 2)."""
        if not self.limits or isinstance(entry, e.RecordsStored | e.RecordsAcknowledged):
            return
        for user, limits in self.limits.items():
            for quota, count in counted(state, user).items():
                place = state.shard, user, quota
                before = self._counts.get(place, 0)
                if count > max(before, limits.of(quota)) and not isinstance(entry, e.SegmentRolled):
                    raise BrokenPromiseError(f"{user} has {count} {quota}, above {limits.of(quota)}: {entry}")
                if (kept := count_of(state, user, quota)) != count:
                    raise BrokenPromiseError(f"{user} has {count} {quota}, and the leader counts {kept}")
                self._counts[place] = count
                for seen in self._asking:
                    fewest, most = seen.get(place, (before, before))
                    seen[place] = min(fewest, count), max(most, count)

    @contextmanager
    def asking(self) -> Iterator[dict[Place, tuple[int, int]]]:
        """Note what users have while a request has no answer."""
        seen = {place: (count, count) for place, count in self._counts.items()}
        self._asking.append(seen)
        try:
            yield seen
        finally:
            self._asking = [each for each in self._asking if each is not seen]

    def check_refusal(self, user: str, reason: str, asked: int, seen: Mapping[Place, tuple[int, int]]) -> None:
        """Check why ``user`` was refused (rule 3). ``asked``: for how many segments; of others, it is one."""
        named = _REFUSAL.fullmatch(reason)
        quota = next((each for each in OBJECTS if named and named[3] == named[4] == each), None)
        if (
            named is None
            or quota is None
            or (named[1] != user and (quota != "segments" or named[1] not in self.limits))
        ):
            raise BrokenPromiseError(f"{user} was refused, and not by a quota of who has to pay: {reason}")
        user = named[1]  # The owner of a topic pays for its segments.
        found, limit = int(named[2]), self.limits[user].of(quota)
        had = [span for (_, who, what), span in seen.items() if (who, what) == (user, quota)]
        if int(named[5]) != limit or found + (asked if quota == "segments" else 1) <= limit:
            raise BrokenPromiseError(f"{user} was refused below its quota {quota} of {limit}: {reason}")
        if not any(fewest <= found <= most for fewest, most in had or [(0, 0)]):
            raise BrokenPromiseError(f"{user} had {had} {quota}, by shards, and was refused: {reason}")


def counted(state: ShardState, user: str) -> dict[Quota, int]:
    """Return how many objects of each quota ``user`` has on one shard."""
    topics = [each for each in state.topics.values() if each.user == user]
    subscriptions = [each for topic in state.topics.values() for each in topic.subscriptions.values()]
    return {
        "topics": len(topics),
        "segments": sum(len(each.layout.segments) for each in topics),
        "subscriptions": sum(each.user == user for each in subscriptions),
        "consumers": sum(user_of(who.client_id) == user for each in subscriptions for who in each.consumers.values()),
        "producers": sum(each.user == user for each in state.producers.values()),
    }
