"""Judge the deadline of a request, before anything else in it.

A request waits in a socket while this process is frozen, and in a broker while the connection is
slow. Its client has reported a failure since, so it must have no effect. The deadline is an age of
the leader's term: the clocks of client and leader need not agree.
"""

from headgate.protocol import messages as m
from shard.subscriptions.refusal import Refusal


def judge_deadline(request: m.Request, term_age_ms: int) -> Refusal | None:
    """Return the refusal of a request of this term whose deadline has passed, else None.

    ``term_age_ms``: how long the term has lasted, by a clock that also runs while the process is
    frozen.
    """
    if request.max_term_age_ms is None:
        return None
    if request.leader_epoch is None:
        return Refusal("invalid", "max_term_age_ms requires the leader_epoch whose clock it is for")
    if term_age_ms < request.max_term_age_ms:
        return None
    return Refusal(
        "expired",
        f"this term has lasted {term_age_ms} ms, the request is valid below {request.max_term_age_ms} ms",
        term_age_ms=term_age_ms,
    )
