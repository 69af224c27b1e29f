"""A cluster that gets more shards, and clients that create, use and delete the same few names: some simulated worlds.

1. Two shards never have one name, and no name gets an id twice (`InvariantChecker` looks at every creation).
2. A creation that was reported as not executed never is. A record that was reported as stored is.
3. In the end each name that a shard has is found, and each other one can be created, where the newest number says.

One of the clients takes the description of the cluster only once. It learns new numbers of shards from refusals.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headgate import Admin, Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import CommandUnknownError, HeadgateError, NoLeaderError
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.clients import CommandClient
from tests.simulation.queue_program import until_done
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

NAMES: Final = tuple(f"twin-{number}" for number in range(5))
USERS: Final = 3
HURRIED: Final = ProducerSettings(linger_seconds=0, request_timeout_seconds=1, delivery_timeout_seconds=5)
PAUSES: Final = (1.0, 30.0), (5.0, 60.0)
"""Seconds before the first growth, and between it and the second one that half of these worlds have."""


class LateClient(CommandClient):
    """Takes one description of the cluster, and no later one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        take = self.cluster_watch.described
        self.cluster_watch.described = lambda found: None if self.cluster_watch.shards.counts else take(found)  # type: ignore[method-assign]


class GrowthProgram:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._stored: list[tuple[str, bytes, int]] = []
        self._users: list[asyncio.Task[None]] = []

    async def start(self, rng: random.Random) -> None:
        """Start the users, and raise the number of shards until the faults end."""
        for number in range(USERS):
            client = self._world.client(f"twin-{number}", LateClient if number == 0 else CommandClient)
            self._users.append(self._world.spawn(self._use(random.Random(rng.getrandbits(32)), client)))
        self._world.faults.rare.external_tasks += self._users
        async with self._world.client("grower") as client:
            await until_done(client.shard_map)
            async with Admin(client, timeout_seconds=5) as admin:
                for pause in PAUSES[: rng.randint(1, 2)]:
                    await asyncio.sleep(rng.uniform(*pause))
                    wanted = client.cluster_watch.shards.shards + rng.randint(1, 3)
                    while client.cluster_watch.shards.shards < wanted:
                        with suppress(HeadgateError):
                            await admin.set_shards(wanted)
                        await asyncio.sleep(1)

    async def _use(self, rng: random.Random, client: CommandClient) -> None:
        counter = 0
        async with client:
            await until_done(client.shard_map)
            async with Admin(client, timeout_seconds=2) as admin, Producer(client, settings=HURRIED) as producer:
                while self._world.producing:
                    await self._world.pause(rng, 0.05, rng.choice([0.1, 1.0]))
                    counter += 1
                    await self._act(rng, client, admin, producer, counter)

    async def _act(
        self, rng: random.Random, client: CommandClient, admin: Admin, producer: Producer, counter: int
    ) -> None:
        name, key = rng.choice(NAMES), client.client_id.encode()
        client.token, what, done = "", rng.choice(["create", "create", "delete", "send", "send"]), "done"
        try:
            if what == "create":
                await admin.create_topic(name)
            elif what == "delete":
                await admin.delete_topic(name, force=True)
            else:
                await producer.send_and_wait(name, key, b"%d" % counter)
                self._stored.append((name, key, counter))
        except HeadgateError as error:
            done = f"failed: {error}"
            if isinstance(error, NoLeaderError) and not isinstance(error, CommandUnknownError) and client.token:
                self._world.checker.command_abandoned(client.token)
        self._world.log(client.client_id, f"{what} {name}", done)

    async def finish(self) -> None:
        """Wait for the end of the users, once faults have ended, and check what is there."""
        await asyncio.gather(*self._users)
        checker, states = self._world.checker, self._world.checker.states
        for name, key, counter in self._stored:
            if not any((each.key, int(each.value)) == (key, counter) for each in checker.stored[name]):
                raise BrokenPromiseError(f"{name}: {key!r} #{counter} was reported as stored, and is not")
        # A leader that has not noticed a growth creates a topic where it was before.
        counts = self._world.shards.counts
        await until(lambda: all(len(each.ids.shard_counts or (1,)) >= len(counts) for each in states.values()))
        async with self._world.client("judge", LateClient) as client, Admin(client, timeout_seconds=60) as admin:
            for name in NAMES:
                places = [state.shard for state in states.values() if name in state.topics]
                if not places:
                    await until_done(lambda name=name: admin.create_topic(name))  # type: ignore[misc]
                found = await admin.describe_topic(name)
                if found.shard not in (places or self._world.shards.candidates(name)[:1]):
                    raise BrokenPromiseError(f"{name} of shards {places} is found at {found.shard}")
