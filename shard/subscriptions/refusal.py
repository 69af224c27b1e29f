"""A refusal: why a request is rejected, and when the leader may say so.

A refused request changes nothing.
"""

from dataclasses import dataclass

from headgate.protocol.replies import Verdict
from metrics.label_values import Quota


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reject the request. Without one of the two flags the leader replies at once."""

    verdict: Verdict
    reason: str
    after_barrier: bool = False
    """Reply after a barrier: a commit that completes after this decision. It proves that this
    leader still leads, so a deposed leader that does not know about its successor cannot end a
    client's session."""
    after_proposed: bool = False
    """Reply once every entry that was proposed before the decision is durable, because the decision rests on them."""
    term_age_ms: int | None = None
    """For ``expired``: how long the term has lasted."""
    quota: Quota | None = None


def refuse(verdict: Verdict, reason: str) -> Refusal:
    """Return a refusal that depends on the state, so that it waits for a barrier."""
    return Refusal(verdict, reason, after_barrier=True)


def invalid(reason: str) -> Refusal:
    """Return the refusal of a request that cannot be executed in this state."""
    return refuse("invalid", reason)


class RequestRefusedError(Exception):
    """A lookup refuses the request that needs it; `shard.requests.handlers` replies with the refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
