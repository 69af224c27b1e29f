"""What the users of a simulated cluster may do, and how much."""

from headgate.model.identifiers import ANONYMOUS
from shard.access.quotas import UNLIMITED, Limits
from shard.access.rules import OPEN, AccessRules, Right, Role
from tests.simulation.plan import Plan
from tests.simulation.rule_breaker import GUEST

RESTRICTED = AccessRules(
    {ANONYMOUS: (Right(Role.ADMINISTRATOR),), GUEST: (Right(Role.PRODUCER, topics=("elsewhere",)),)},
    default_limits=UNLIMITED,
)


def rules_of(plan: Plan, scarce: Limits) -> AccessRules:
    # One of the large records would spend them for many minutes.
    if plan.kinds & {"quotas", "large_records"} == {"quotas"}:
        return AccessRules({ANONYMOUS: (Right(Role.ADMINISTRATOR),)}, default_limits=scarce)
    return RESTRICTED if "rule_breaker" in plan.programs else OPEN
