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


def rules_of(plan: Plan, scarce: Limits, tenants: dict[str, Limits]) -> AccessRules:
    """Return the rights and quotas. ``scarce``: of all clients together, in worlds where they meet them."""
    # One of the large records, or of the rule breaker, would spend them for many minutes.
    if plan.kinds & {"quotas", "large_records", "rule_breaker"} == {"quotas"}:
        return AccessRules({ANONYMOUS: (Right(Role.ADMINISTRATOR),)}, default_limits=scarce)
    if tenants:
        own = {tenant: (Right(Role.ADMINISTRATOR, topics=("tenant-*",)),) for tenant in tenants}
        return AccessRules({**RESTRICTED.users, **own}, limits=tenants, default_limits=UNLIMITED)
    return RESTRICTED if "rule_breaker" in plan.programs else OPEN
