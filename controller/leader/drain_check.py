"""Ask a drain checker about the subscriptions of one shard, once what they acknowledged is durable.

The coordinator and the drain packages do not know each other. This class implements the
coordinator's port, `coordinator.ports.DrainCheck`, by a query to the daemon's checker: Spark, or
published results.
"""

import asyncio
from collections.abc import Mapping

from controller.backlog.external_query import external_view
from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import DrainChecker
from drain.protocol import DrainCheckError, DrainQuery
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.subscriptions.two_witnesses import DrainClaim


class LedgerDrainCheck:
    """`coordinator.ports.DrainCheck` for one leader term."""

    def __init__(self, state: ShardState, commit: GroupCommit, checker: DrainChecker) -> None:
        self._state = state
        self._commit = commit
        self._checker = checker

    async def __call__(self, subscription: Subscription, segments: frozenset[int], /) -> Mapping[int, DrainClaim]:
        """See `coordinator.ports.DrainCheck`."""
        # The newest acknowledgement may be in the open chunk. The checker reads durable chunks only.
        chunk = self._commit.newest
        durable = asyncio.Event()
        self._commit.when_durable(chunk, durable.set)
        await durable.wait()
        answer = await self._checker.drained(
            DrainQuery(
                shard=self._state.shard,
                topic_id=subscription.topic_id,
                subscription_id=subscription.subscription_id,
                seek_generation=subscription.seek_generation,
                segments=segments,
                at_least_chunk=chunk,
                external=external_view(self._state.topics_by_id[subscription.topic_id], [subscription]),
            )
        )
        if answer.watermark > self._commit.newest:
            raise DrainCheckError(
                f"shard {self._state.shard} was counted to chunk {answer.watermark}, and this leader has written "
                f"{self._commit.newest}: another leader writes this ledger, or another ledger was counted"
            )
        return {segment: DrainClaim(end, answer.from_tables) for segment, end in answer.drained.items()}
