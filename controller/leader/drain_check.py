"""The question whether segments are drained, as subscriptions ask it, put to whichever checker the daemon has."""

from __future__ import annotations

from controller.leader.subscription_registry import DrainCheck
from coordinator.state.subscription import Subscription
from drain.checker.checker import SparkDrainChecker
from drain.checker.results_checker import ResultsChecker
from drain.external.table_mapping import ExternalView
from drain.protocol import DrainQuery


def drain_check_for(checker: SparkDrainChecker | ResultsChecker) -> DrainCheck:
    """Return the question that subscriptions ask, put to ``checker``."""

    async def check(
        shard: int,
        subscription: Subscription,
        segments: frozenset[int],
        newest: int,
        external: ExternalView | None,
    ) -> frozenset[int]:
        return await checker.drained(
            DrainQuery(
                shard=shard,
                topic_id=subscription.topic_id,
                subscription_id=subscription.subscription_id,
                seek_generation=subscription.seek_generation,
                segments=segments,
                at_least_chunk=newest,
                external=external,
            ),
        )

    return check
