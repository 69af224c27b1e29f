"""Decides whether the leader agrees that a segment is drained: two witnesses. Pure.

A drained fact opens the children for good. Spark decides it, from the stored ledger. The leader compares the claim
with its own state, and can veto it, so that neither opens a gate alone: not a Spark process that counts another
ledger, and not a leader with a wrong memory. A claim agrees if all rules hold:

1. The segment is sealed, and Spark counted to the leader's own end of it.
2. The leader's own acknowledgements at the current seek generation reach that end, in every key bucket.
3. Instead of rule 2, for an external topic with offset positions whose acknowledgements are in a table: the leader
   has none of its own. Of any other topic, a claim that rests on a table contradicts.

The drained fact follows those acknowledgements in the ledger, or shares their chunk, so it is durable only with them.
"""

from dataclasses import dataclass

from shard.state.subscription import Subscription
from shard.state.topic import TopicView


@dataclass(frozen=True, slots=True)
class DrainClaim:
    """What Spark says about one segment: every record below ``end_offset`` is acknowledged, and there is no other."""

    end_offset: int
    from_tables: bool = False
    """Acknowledgements in a table of an external topic count too."""


def contradiction(subscription: Subscription, topic: TopicView, segment: int, claim: DrainClaim) -> str | None:
    """Return what of the leader's own state contradicts ``claim`` about a segment of the layout; None: they agree."""
    end = topic.layout.segments[segment].end_offset
    position = subscription.position(segment)
    own = f"this leader knows {position} of {'an open segment' if end is None else end} as acknowledged"
    if end is None or claim.end_offset != end:
        return f"Spark says that it is drained to {claim.end_offset}; {own}"
    if claim.from_tables:
        if topic.external is not None and topic.external.positions == "offsets":
            return None
        return f"Spark says that it is drained to {end} with acknowledgements in a table, which this topic cannot have"
    return None if position >= end else f"Spark says that it is drained to {end}; {own}"
