"""Find the shard of a topic. In a cluster that has grown, leaders say which of its places has it.

1. If the places (`headgate.model.hashing`) are one shard, there is nothing to ask. Otherwise all are asked at once.
2. What is remembered is a hint. A leader whose shard does not have the topic refuses a request for it, and then the
   place is forgotten and looked for again: the topic may have been deleted, and created elsewhere.
3. Before a topic is created, every other place has to say that it does not have it, by the list that the creation
   names: `shard.requests.topic_shard` says why that remains so. A leader that knows a shorter list is asked again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from headgate.backoff import Backoff, BackoffSchedule
from headgate.client.cluster_watch import ClusterWatch
from headgate.client.reply_dispatch import body_of
from headgate.errors import NoLeaderError, RequestRejectedError
from headgate.process.background import end_tasks
from headgate.protocol.replies import Reply, TopicPlace
from headgate.protocol.requests import AnyRequestBody, FindTopic

T = TypeVar("T")
AskLeader = Callable[[int, AnyRequestBody, float], Awaitable[Reply]]

RETRY_BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=1.0, jitter=0.2)


class TopicPlaces:
    def __init__(self, watch: ClusterWatch, request: AskLeader, draw: Callable[[], float]) -> None:
        """``request`` is `Client.request`; ``draw`` returns a random number below 1."""
        self._watch = watch
        self._request = request
        self._draw = draw
        self._found: dict[tuple[bytes, str], int] = {}
        """(ledger, topic) → its shard."""

    async def shard_of(self, topic: str, timeout_seconds: float) -> int:
        """Return the shard that has ``topic``, or the one to create it on. Raises like `Client.request`."""
        await self._watch.description(timeout_seconds)
        if (found := self._found.get((self._watch.ledger, topic))) is not None:
            return found
        return (await self.find(topic, timeout_seconds, proof=False))[0]

    async def find(self, topic: str, timeout_seconds: float, *, proof: bool = True) -> tuple[int, list[int]]:
        """Return the shard that has ``topic`` or, if none has, the one on which to create it; and the list for that.

        With ``proof`` no other shard will ever have it, by this list of numbers. Raises like `Client.request`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self._watch.description(timeout_seconds)
        several = len(self._watch.shards.candidates(topic)) > 1
        found = await self._look(topic, deadline, proof=proof) if several else None
        shards = self._watch.shards
        return shards.candidates(topic)[0] if found is None else found, list(shards.counts)

    async def at(self, topic: str, ask: Callable[[int], Awaitable[T]], timeout_seconds: float) -> T:
        """Return what ``ask`` returns for the shard of ``topic``. After a refusal there, where it is by now."""
        while True:
            shard = await self.shard_of(topic, timeout_seconds)
            try:
                return await ask(shard)
            except RequestRejectedError as error:
                if error.verdict != "invalid" or not self.forget(topic):
                    raise
                if await self.shard_of(topic, timeout_seconds) == shard:
                    raise

    def forget(self, topic: str) -> bool:
        """Forget where ``topic`` is, because the leader there does not have it. False: it can be nowhere else."""
        self._found.pop((self._watch.ledger, topic), None)
        return len(self._watch.shards.candidates(topic)) > 1

    async def _look(self, topic: str, deadline: float, *, proof: bool) -> int | None:
        """Ask until a place says that it has ``topic``, or all say that they do not; with ``proof``: and never will."""
        loop, pauses = asyncio.get_running_loop(), BackoffSchedule(RETRY_BACKOFF, self._draw)
        self.forget(topic)
        while True:
            ledger_id, shards = self._watch.ledger, self._watch.shards
            answers = await self._ask(topic, shards.candidates(topic), deadline - loop.time())
            if isinstance(answers, int):
                self._found[ledger_id, topic] = answers
                return answers
            if self._watch.shards != shards:
                continue  # A leader knew more shards.
            if not proof or all(tuple(each.shards) == shards.counts for each in answers):
                return None
            pause = pauses.next_seconds()
            if loop.time() + pause >= deadline:
                raise NoLeaderError(f"topic {topic!r}: a shard has yet to store that the cluster has {shards.shards}")
            await asyncio.sleep(pause)

    async def _ask(self, topic: str, places: Sequence[int], timeout_seconds: float) -> int | list[TopicPlace]:
        """Return the place that says that it has ``topic``, or what all say."""

        async def ask(shard: int) -> tuple[int, TopicPlace]:
            reply = await self._request(shard, FindTopic(topic=topic), timeout_seconds)
            place = body_of(reply, TopicPlace, f"the leader of shard {shard}")
            self._watch.learn(place.shards)
            return shard, place

        asked = [asyncio.create_task(ask(shard)) for shard in places]
        try:
            for done in asyncio.as_completed(asked):
                with suppress(NoLeaderError):  # Another place may have it.
                    shard, place = await done
                    if place.topic_id is not None:
                        return shard
            return [each.result()[1] for each in asked]
        finally:
            await end_tasks(*asked)
